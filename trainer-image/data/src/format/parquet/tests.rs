use std::sync::Arc;

use ::parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;

use super::*;
use crate::batch::HostBatch;
use crate::dataset::Dataset;
use crate::format::testing;
use crate::format::tokens::{Tokens, Windows};

/// Writes rows of (image, label). `None` is a null image. Each inner slice is a row group.
fn images(path: &Path, groups: &[&[(Option<&str>, i64)]]) {
    let schema = "message m { optional group image { optional binary bytes; optional binary path (UTF8); } optional int64 label; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let compression = ::parquet::basic::Compression::SNAPPY;
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .build();
    let mut writer =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties))
            .unwrap();
    for rows in groups {
        let mut group = writer.next_row_group().unwrap();
        let values: Vec<ByteArray> = rows
            .iter()
            .filter_map(|(image, _)| image.map(ByteArray::from))
            .collect();
        let levels: Vec<i16> = rows
            .iter()
            .map(|(image, _)| if image.is_some() { 2 } else { 1 })
            .collect();
        for _ in 0..2 {
            let mut column = group.next_column().unwrap().unwrap();
            column
                .typed::<ByteArrayType>()
                .write_batch(&values, Some(&levels), None)
                .unwrap();
            column.close().unwrap();
        }
        let labels: Vec<i64> = rows.iter().map(|(_, label)| *label).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<Int64Type>()
            .write_batch(&labels, Some(&vec![1; labels.len()]), None)
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

fn write_tokens(path: &Path, groups: &[&[&[i32]]]) {
    std::fs::write(path, testing::token_lists(groups)).unwrap();
}

fn read(records: &Parquet, number: u64) -> Result<(i64, String), String> {
    let mut bytes = Vec::new();
    match records.read(number, &mut bytes) {
        Ok(Record::Encoded { label } | Record::Raw { label, .. }) => {
            Ok((label, String::from_utf8(bytes).unwrap()))
        }
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn images_of_several_row_groups_are_read_at_random() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (
        directory.path().join("a.parquet"),
        directory.path().join("b.parquet"),
    );
    images(
        &first,
        &[&[(Some("0"), 3), (Some("1"), 0)], &[(Some("2"), 1)]],
    );
    images(&second, &[&[(None, 1), (Some("4"), 2)]]);
    let records = Parquet::open(directory.path(), "image", "label", &Cache::default()).unwrap();
    assert_eq!((records.num_records(), records.num_classes()), (5, 4));
    for (number, label) in [(4, 2), (0, 3), (2, 1), (1, 0)] {
        assert_eq!(read(&records, number), Ok((label, number.to_string())));
    }
    let text = read(&records, 3).unwrap_err();
    assert!(
        text.contains("b.parquet at record 0: the row has no image"),
        "{text}"
    );
}

#[test]
fn missing_column_or_truncated_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    images(&path, &[&[(Some("0"), 3)]]);
    let text = Parquet::open(&path, "picture", "label", &Cache::default())
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("no column picture; it has image.bytes, image.path, label"),
        "{text}"
    );
    let text = Parquet::open(&path, "image", "image.path", &Cache::default())
        .unwrap_err()
        .to_string();
    assert!(text.contains("type BYTE_ARRAY"), "{text}");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    let text = Parquet::open(&path, "image", "label", &Cache::default())
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("a.parquet: the Parquet file is truncated or corrupt"),
        "{text}"
    );
}

#[test]
fn token_lists_are_joined_across_row_groups() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().join("a.parquet")];
    write_tokens(&paths[0], &[&[&[1, 2, 3], &[], &[4]], &[&[5, 6], &[7]]]);
    for _ in 0..2 {
        let lists = TokenLists::open(&paths, "input_ids", &Cache::default()).unwrap();
        assert_eq!(lists.num_tokens(), [7]);
        let windows = Windows::new(&paths[0], Box::new(lists), 3, None).unwrap();
        assert_eq!(
            HostBatch::read(&windows, &[1, 0], 0).unwrap().tokens(),
            [4, 5, 6, 7, 1, 2, 3, 4]
        );
    }
    let text = TokenLists::open(&paths, "tokens", &Cache::default())
        .unwrap_err()
        .to_string();
    assert!(text.contains("no column tokens"), "{text}");
}

#[test]
fn token_lists_share_one_memory_limit_and_block_size() {
    let directory = tempfile::tempdir().unwrap();
    // Row groups of 12, 12, 12, 12 and 2 tokens of 4 bytes.
    let groups: [&[&[&[i32]]]; 3] = [
        &[&[&[7; 12]], &[&[7; 12]]],
        &[&[&[8; 12]], &[&[8; 12]]],
        &[&[&[9, 9]]],
    ];
    let mut paths = Vec::new();
    for (number, groups) in groups.into_iter().enumerate() {
        paths.push(directory.path().join(format!("{number}.parquet")));
        write_tokens(&paths[number], groups);
    }
    let lists = TokenLists::open_within(100, &paths, "input_ids", &Cache::default()).unwrap();
    assert_eq!(lists.num_tokens(), [24, 24, 2]);
    for _ in 0..2 {
        for (file, (start, token)) in [(0, 7_u32), (12, 8), (0, 9)].into_iter().enumerate() {
            let mut bytes = [0; 8];
            lists
                .read(file, start, &mut Vec::new(), &mut bytes)
                .unwrap();
            assert_eq!(bytes, [token.to_ne_bytes(); 2].as_flattened());
            assert!(lists.num_bytes_kept() <= 100);
        }
    }
    // Two row groups of 48 bytes together with the one of 8 exceed the limit.
    assert_eq!(lists.num_bytes_kept(), 56);
    let windows = Windows::new(directory.path(), Box::new(lists), 2, None).unwrap();
    assert_eq!(windows.samples_per_block(), 50 / 5 / 2);
}

#[test]
fn repeated_value_prefixes_are_counted_in_full() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    let schema = parse_message_type("message m { required binary image; }").unwrap();
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_encoding(::parquet::basic::Encoding::DELTA_BYTE_ARRAY)
        .build();
    let file = File::create(&path).unwrap();
    let writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties));
    let mut writer = writer.unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values = vec![ByteArray::from(vec![7; 1 << 20]); 10];
    let written = column
        .typed::<ByteArrayType>()
        .write_batch(&values, None, None);
    assert_eq!(written.unwrap(), 10);
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    assert!(
        std::fs::metadata(&path).unwrap().len() < 2 << 20,
        "each value is written once"
    );
    let file = reader(&path).unwrap();
    let rows = file.get_row_group(0).unwrap();
    let read = |bytes| columns::bytes_within(pages::Bounds { values: 10, bytes }, rows.as_ref(), 0);
    assert_eq!(
        read(10 << 20).unwrap(),
        values.into_iter().map(Some).collect::<Vec<_>>()
    );
    let error = read((10 << 20) - 1).unwrap_err().to_string();
    assert!(error.contains("9 MiB"), "{error}");
}
