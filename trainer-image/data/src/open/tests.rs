use std::path::Path;

use serde_json::json;

use super::*;
use crate::batch::HostBatch;
use crate::dataset::Item;
use crate::format::testing;
use crate::format::tfrecord;
use crate::prefetch::{OnCorrupt, Options, Prefetcher, Request};

mod token_files;
mod transforms;

fn configured(value: serde_json::Value) -> Data {
    serde_json::from_value(value).unwrap()
}

fn write(root: &Path, name: &str, bytes: &[u8]) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Six images of two classes as folder, tar and record files. Image i has label i % 2.
fn images() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let encoded: Vec<Vec<u8>> = (0..6)
        .map(|number| testing::jpeg(40, 30, number * 20 + 1))
        .collect();
    let names: Vec<(String, String)> = (0..6)
        .map(|i| (format!("{i}.jpg"), format!("{i}.cls")))
        .collect();
    let mut members: Vec<(&str, &[u8])> = Vec::new();
    let labels = ["0", "1"];
    let mut records = Vec::new();
    for (number, image) in encoded.iter().enumerate() {
        write(
            root.path(),
            &format!("folder/train/class{}/{number}.jpg", number % 2),
            image,
        );
        members.push((&names[number].0, image));
        members.push((&names[number].1, labels[number % 2].as_bytes()));
        records.extend(tfrecord::frame(&testing::example(
            image,
            number as u64 % 2,
            true,
        )));
    }
    write(root.path(), "tar/train/0.tar", &testing::tar(&members));
    write(root.path(), "record/train/0.tfrecord", &records);
    root
}

#[test]
fn shipped_digits_are_read_as_before() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/digits");
    let splits = open(
        &configured(json!({"format": "idx"})),
        &root,
        Pixels::Bytes,
        0,
        None,
    )
    .unwrap();
    let test = splits.validation.clone().unwrap();
    let item = Item::Pixels {
        height: 8,
        width: 8,
        num_channels: 1,
    };
    assert_eq!(
        (splits.train.item(), splits.train.num_classes()),
        (&item, Some(10))
    );
    assert_eq!(
        splits.order(7, 1),
        Permutation::new(splits.train.num_samples(), 7, 1)
    );
    let batch = HostBatch::read(test.as_ref(), &[0, 1, 2], 0).unwrap();
    assert_eq!(batch.values.len(), 3 * 64);
    assert!(batch.values.iter().any(|value| *value > 0));
    assert!(splits.normalize.is_none() && splits.blocks.is_none());
}

#[test]
fn same_images_give_the_same_samples_in_each_format() {
    let root = images();
    let mut found = Vec::new();
    for (format, path) in [
        ("imagefolder", "folder"),
        ("webdataset", "tar"),
        ("tfrecord", "record"),
    ] {
        let data = configured(json!({"format": format, "path": path, "image": {"size": 24}}));
        let splits = open(&data, root.path(), Pixels::Bytes, 0, None).unwrap();
        assert_eq!(
            (splits.train.num_samples(), splits.train.num_classes()),
            (6, Some(2))
        );
        assert!(splits.validation.is_none());
        let batch = HostBatch::read(splits.train.as_ref(), &[0, 1, 2, 3, 4, 5], 0).unwrap();
        let mut samples: Vec<(i64, Vec<u8>)> = batch
            .labels
            .iter()
            .copied()
            .zip(batch.values.chunks(24 * 24 * 3).map(<[u8]>::to_vec))
            .collect();
        samples.sort();
        found.push(samples);
    }
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0], found[2]);
}

/// Opens data and returns its description.
fn described(root: &Path, data: serde_json::Value) -> String {
    let splits = open(&configured(data), root, Pixels::Bytes, 0, None).unwrap();
    splits.train.describe()
}

#[test]
fn each_format_describes_its_data_and_what_was_left_out() {
    let root = images();
    let webp: &[u8] = b"RIFF";
    write(root.path(), "folder/train/class1/9.webp", webp);
    write(root.path(), "tar/train/README.md", b"about");
    let members = testing::tar(&[("9.webp", webp), ("9.cls", b"1")]);
    write(root.path(), "tar/train/1.tar", &members);
    let tokens: Vec<u8> = (0..81_u16).flat_map(u16::to_le_bytes).collect();
    write(root.path(), "tokens/train/a.bin", &tokens);
    write(root.path(), "tokens/train/b.bin", &tokens);
    write(root.path(), "tokens/train/c.npy", &tokens);
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/digits");
    let idx = described(&digits, json!({"format": "idx"}));
    assert!(idx.ends_with(" images in 10 classes"), "{idx}");
    for (data, expected) in [
        (
            json!({"format": "imagefolder", "path": "folder", "image": {"size": 8}}),
            "6 images in 2 classes (class0, class1), 1 file of another kind left out (e.g. 9.webp)",
        ),
        (
            json!({"format": "webdataset", "path": "tar", "image": {"size": 8}}),
            "6 images in 2 classes, from 2 files, 1 file of another kind left out (e.g. README.md), \
             1 sample without an image left out (e.g. 9.webp)",
        ),
        (
            json!({"format": "tfrecord", "path": "record", "image": {"size": 8}}),
            "6 images in 2 classes, from 1 file",
        ),
        (
            json!({"format": "tokens", "path": "tokens", "tokens": {"context": 8}}),
            "20 samples of 8 tokens, from 162 tokens in 2 files, 1 file of another kind left out (e.g. c.npy)",
        ),
        (
            json!({"format": "tokens", "path": "tokens/train", "tokens": {"context": 8},
                "mix": [{"train": "a.bin", "weight": 3}, {"train": "b.bin", "weight": 1}]}),
            "20 samples in an epoch; 15 from a.bin (10 samples of 8 tokens, from 81 tokens in 1 file); \
             5 from b.bin (10 samples of 8 tokens, from 81 tokens in 1 file)",
        ),
    ] {
        assert_eq!(described(root.path(), data), expected);
    }
}

#[test]
fn corrupt_image_fails_or_is_replaced_by_policy() {
    let root = images();
    write(
        root.path(),
        "folder/train/class1/5.jpg",
        &testing::jpeg(40, 30, 3)[..300],
    );
    let data = configured(json!({"format": "imagefolder", "path": "folder", "image": {"size": 8}}));
    let fetch = |on_corrupt| {
        let splits = open(&data, root.path(), Pixels::Bytes, 0, None).unwrap();
        let options = Options {
            on_corrupt,
            ..Options::default()
        };
        let mut prefetcher = Prefetcher::new(splits.train, options).unwrap();
        prefetcher.fetch(&Request {
            samples: vec![4, 5],
            epoch: 0,
        })
    };
    let text = fetch(OnCorrupt::Fail).unwrap_err().to_string();
    assert!(
        text.contains("class1/5.jpg: the JPEG image is truncated"),
        "{text}"
    );
    let batch = fetch(OnCorrupt::Skip).unwrap();
    assert_eq!((batch.skipped.len(), batch.skipped[0].sample), (1, 5));
    assert_eq!(
        batch.skipped[0].replacement,
        fetch(OnCorrupt::Skip).unwrap().skipped[0].replacement
    );
}

#[test]
fn label_beyond_the_configured_classes_is_named() {
    let root = images();
    write(
        root.path(),
        "tar/train/1.tar",
        &testing::tar(&[("x.jpg", &testing::jpeg(8, 8, 1)), ("x.cls", b"7")]),
    );
    let data = configured(
        json!({"format": "webdataset", "path": "tar", "image": {"size": 8, "numClasses": 2}}),
    );
    let splits = open(&data, root.path(), Pixels::Bytes, 0, None).unwrap();
    let text = HostBatch::read(splits.train.as_ref(), &[6], 0)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("1.tar at byte 512: label 7 is out of range; the classes are 0 to 1"),
        "{text}"
    );
}

#[test]
fn missing_data_is_named_with_its_field() {
    let root = images();
    let cases = [
        (
            json!({"format": "imagefolder", "path": "nowhere"}),
            "trainer.data.train",
        ),
        (
            json!({"format": "imagefolder", "path": "folder", "validation": "test"}),
            "trainer.data.validation",
        ),
        (
            json!({"format": "webdataset", "path": "folder"}),
            "ends with .tar",
        ),
        (
            json!({"format": "imagefolder", "path": "folder", "image": {"mean": [0.5], "std": [0.5]}}),
            "trainer.data.image.mean",
        ),
        (
            json!({"format": "custom"}),
            "trainer.data.format: custom is for a program of your own",
        ),
        (
            json!({"format": "imagefolder", "path": "../x"}),
            "trainer.data.path",
        ),
    ];
    for (value, expected) in cases {
        let text = open(&configured(value), root.path(), Pixels::Bytes, 0, None)
            .unwrap_err()
            .to_string();
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
