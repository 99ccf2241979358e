//! Small files in each data format.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use roundhouse_data::format::tfrecord::frame;

/// Number of images in each data set, of two alternating classes.
pub(crate) const NUM_IMAGES: u8 = 20;

/// A PNG image of 8×8 pixels of noise.
fn image(number: u8) -> Vec<u8> {
    let noise = |at: u32| (at + 1_000 * u32::from(number)).wrapping_mul(2_654_435_761) >> 24;
    let pixels = (0..8 * 8 * 3).map(|at| u8::try_from(noise(at)).unwrap());
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 8, 8);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().unwrap();
    let pixels: Vec<u8> = pixels.collect();
    writer.write_image_data(&pixels).unwrap();
    writer.finish().unwrap();
    bytes
}

fn label(number: u8) -> u8 {
    number % 2
}

/// Writes a directory for each class.
pub(crate) fn image_folder(directory: &Path) {
    for number in 0..NUM_IMAGES {
        let class = directory.join(format!("class-{}", label(number)));
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join(format!("{number:02}.png")), image(number)).unwrap();
    }
}

/// Writes two shards of a `WebDataset`.
pub(crate) fn web_dataset(directory: &Path) {
    std::fs::create_dir(directory).unwrap();
    let half = NUM_IMAGES / 2;
    for (shard, numbers) in [(0, 0..half), (1, half..NUM_IMAGES)] {
        let file = File::create(directory.join(format!("{shard}.tar"))).unwrap();
        let mut shard = tar::Builder::new(file);
        let mut add = |name: String, data: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            shard.append_data(&mut header, name, data).unwrap();
        };
        for number in numbers {
            add(format!("{number:02}.png"), &image(number));
            add(
                format!("{number:02}.cls"),
                label(number).to_string().as_bytes(),
            );
        }
        shard.finish().unwrap();
    }
}

/// Writes one file of `tf.train.Example` records.
pub(crate) fn tf_record(directory: &Path) {
    std::fs::create_dir(directory).unwrap();
    let example = |number| {
        let image = field(1, &field(1, &image(number)));
        let label = field(3, &field(1, &[label(number)]));
        let entry = |key: &str, value: &[u8]| {
            field(1, &[field(1, key.as_bytes()), field(2, value)].concat())
        };
        let features = [
            entry("image/encoded", &image),
            entry("image/class/label", &label),
        ];
        frame(&field(1, &features.concat()))
    };
    let bytes: Vec<u8> = (0..NUM_IMAGES).flat_map(example).collect();
    std::fs::write(directory.join("train.tfrecord"), bytes).unwrap();
}

/// A field of bytes of a protobuf message; its length takes two bytes.
fn field(number: u8, data: &[u8]) -> Vec<u8> {
    assert!(data.len() < 1 << 14);
    let low = u8::try_from(data.len() & 0x7f).unwrap() | 0x80;
    let high = u8::try_from(data.len() >> 7).unwrap();
    [&[number << 3 | 2, low, high], data].concat()
}

/// Writes two row groups, with the columns of Hugging Face.
pub(crate) fn parquet(directory: &Path) {
    std::fs::create_dir(directory).unwrap();
    let schema =
        "message m { required group image { required binary bytes; } required int64 label; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    let file = File::create(directory.join("train.parquet")).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, properties).unwrap();
    let half = NUM_IMAGES / 2;
    for numbers in [0..half, half..NUM_IMAGES] {
        let mut group = writer.next_row_group().unwrap();
        let images: Vec<ByteArray> = numbers.clone().map(|it| image(it).into()).collect();
        let mut column = group.next_column().unwrap().unwrap();
        let typed = column.typed::<ByteArrayType>();
        typed.write_batch(&images, None, None).unwrap();
        column.close().unwrap();
        let labels: Vec<i64> = numbers.map(|it| label(it).into()).collect();
        let mut column = group.next_column().unwrap().unwrap();
        let typed = column.typed::<Int64Type>();
        typed.write_batch(&labels, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// Writes documents of three words, and their tokenizer.
pub(crate) fn text(directory: &Path) {
    const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
        {"id": 4, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
         "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2, "?": 3}, "unk_token": "?"}}"#;
    std::fs::write(directory.join("tokenizer.json"), TOKENIZER).unwrap();
    let train = directory.join("train");
    std::fs::create_dir(&train).unwrap();
    let word = |at: u32| ["a", "b", "c"][(at * at % 7 % 3) as usize];
    let line = |at: u32| format!("{} {} {}\n", word(at), word(at + 1), word(at * at));
    let lines: String = (0..100).map(line).collect();
    std::fs::write(train.join("a.txt"), lines).unwrap();
}
