//! Readers of training data, which the user may have downloaded from anywhere.

use std::path::Path;

use roundhouse_contract::trainer::data::Data;
use roundhouse_data::cache::Cache;
use roundhouse_data::format::parquet::Parquet;
use roundhouse_data::format::shards::{Shard, Shards};
use roundhouse_data::format::tfrecord::TfRecord;
use roundhouse_data::format::webdataset::WebDataset;
use roundhouse_data::format::{testing, tfrecord};
use roundhouse_data::image::Records;
use roundhouse_data::open::{Pixels, open};
use roundhouse_data::{DataError, Dataset, HostBatch, image};
use serde_json::{Value, json};

use crate::Target;
use crate::input_directory::InputDirectory;
use crate::inputs::{joined, parts};

/// The number of samples that a target reads of each split.
const MOST_SAMPLES: u64 = 4;
/// The pixels of the largest image that a target decodes. Larger images take more time and run the
/// same code.
const MOST_PIXELS: usize = 1 << 14;

/// IDX files of images and labels, plain and with gzip, for both splits.
pub const IDX: Target = Target {
    name: "idx",
    read: |bytes| {
        let [images, labels] = parts(bytes);
        let is_compressed = images.starts_with(&[0x1f, 0x8b]);
        let ending = if is_compressed { ".gz" } else { "" };
        let mut files = Vec::new();
        for split in ["train", "t10k"] {
            files.push((format!("{split}-images-idx3-ubyte{ending}"), images));
            files.push((format!("{split}-labels-idx1-ubyte"), labels));
        }
        read(json!({"format": "idx"}), &files);
    },
    seeds: || {
        let images = [
            &[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2][..],
            &[7; 8],
        ]
        .concat();
        let labels = [0, 0, 8, 1, 0, 0, 0, 2, 0, 1];
        vec![joined(&[&images, &labels])]
    },
};

/// JPEG and PNG images, with and without resizing and augmentation.
pub const IMAGE: Target = Target {
    name: "image",
    read: |bytes| {
        // Images that the decoder refuses, or that have too many pixels, end here.
        if image::decode::decode_at_most(MOST_PIXELS, bytes, &mut Vec::new()).is_err() {
            return;
        }
        let files = [("train/a/0".to_owned() + ending(bytes), bytes)];
        let augment = json!(["resizedCrop", "flip"]);
        let image = json!({"size": 8, "augment": augment, "numClasses": 2});
        read(json!({"format": "imagefolder", "image": image}), &files);
    },
    seeds: || {
        vec![
            testing::jpeg(16, 8, 7),
            testing::png(2, 2, png::ColorType::Rgb, &[9; 12]),
        ]
    },
};

/// Files of `TFRecord` with `tf.train.Example` records.
pub const TFRECORD: Target = Target {
    name: "tfrecord",
    read: |bytes| {
        read_shard(TfRecord, "tfrecord", bytes);
        // A fuzzer does not find valid checksums by chance, so this adds them.
        read_shard(TfRecord, "tfrecord", &tfrecord::frame(bytes));
    },
    seeds: || {
        let example = testing::example(&testing::jpeg(8, 8, 1), 1, true);
        vec![tfrecord::frame(&example), example]
    },
};

/// Tar files of `WebDataset`.
pub const WEBDATASET: Target = Target {
    name: "webdataset",
    read: |bytes| read_shard(WebDataset, "tar", bytes),
    seeds: || {
        let image = testing::jpeg(8, 8, 1);
        vec![testing::tar(&[
            ("a.jpg", &image),
            ("a.cls", b"1"),
            ("b.jpg", &image),
            ("b.json", br#"{"label": 0}"#),
        ])]
    },
};

/// Parquet files with lists of tokens or with images.
pub const PARQUET: Target = Target {
    name: "parquet",
    read: |bytes| {
        let files = [("train/0.parquet".to_owned(), bytes)];
        let tokens = json!({"context": 2, "column": "input_ids", "vocabulary": 50});
        read(json!({"format": "parquet", "tokens": tokens}), &files);
        read_records("parquet", bytes, |path| {
            Parquet::open(path, "input_ids", "input_ids", &Cache::default())
        });
    },
    seeds: || {
        vec![testing::token_lists(&[
            &[&[1, 2, 3], &[], &[4]],
            &[&[5, 6]],
        ])]
    },
};

/// Binary files of tokens, which have no header.
pub const TOKENS: Target = Target {
    name: "tokens",
    read: |bytes| {
        for dtype in ["u16", "u32"] {
            let tokens = json!({"context": 2, "dtype": dtype, "vocabulary": 50});
            let files = [("train/0.bin".to_owned(), bytes)];
            read(json!({"format": "tokens", "tokens": tokens}), &files);
        }
    },
    seeds: || vec![vec![1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]],
};

/// A tokenizer's JSON file and a text.
pub const TEXT: Target = Target {
    name: "text",
    read: |bytes| {
        let [tokenizer, text] = parts(bytes);
        let tokens = json!({"context": 2, "tokenizer": "tokenizer.json"});
        let files = [
            ("tokenizer.json".to_owned(), tokenizer),
            ("train/0.txt".to_owned(), text),
        ];
        read(json!({"format": "text", "tokens": tokens}), &files);
    },
    seeds: || {
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
            "pre_tokenizer": {"type": "Whitespace"},
            "added_tokens": [{"id": 2, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "</s>": 2, "?": 3}, "unk_token": "?"},
        });
        vec![joined(&[tokenizer.to_string().as_bytes(), b"a b a\nb b\n"])]
    },
};

/// Opens a data set of these files, and reads the first samples and the last sample of each split.
fn read(config: Value, files: &[(String, &[u8])]) {
    let config: Data = serde_json::from_value(config).unwrap();
    let directory = InputDirectory::new();
    for (name, bytes) in files {
        directory.write(name, bytes);
    }
    let Ok(splits) = open(&config, directory.path(), Pixels::Bytes, 0, Some(50)) else {
        return;
    };
    for dataset in [Some(splits.train), splits.validation]
        .into_iter()
        .flatten()
    {
        let num_samples = dataset.num_samples();
        let last = num_samples.saturating_sub(1).max(MOST_SAMPLES);
        for sample in (0..num_samples.min(MOST_SAMPLES)).chain(last..num_samples) {
            check(dataset.as_ref(), sample);
        }
        assert!(HostBatch::read(dataset.as_ref(), &[num_samples], 0).is_err());
    }
}

fn read_shard<S: Shard>(shard: S, ending: &str, bytes: &[u8]) {
    read_records(ending, bytes, |path| {
        Shards::open(shard, path, &Cache::default())
    });
}

/// Reads the first records and the last record of a file twice, and compares them. Images are not
/// decoded, because [`IMAGE`] does that.
fn read_records<R: Records>(
    ending: &str,
    bytes: &[u8],
    open: impl FnOnce(&Path) -> Result<R, DataError>,
) {
    InputDirectory::of_thread(|directory| {
        let Ok(records) = open(&directory.write(format!("{ending}/0.{ending}"), bytes)) else {
            return;
        };
        let num_records = records.num_records();
        let last = num_records.saturating_sub(1).max(MOST_SAMPLES);
        let read = |number| {
            let mut bytes = Vec::new();
            let record = records.read(number, &mut bytes);
            record
                .map(|record| (record, bytes))
                .map_err(|error| error.to_string())
        };
        for number in (0..num_records.min(MOST_SAMPLES)).chain(last..num_records) {
            assert_eq!(read(number), read(number));
        }
        assert!(read(num_records).is_err());
    });
}

/// Checks that reading a sample twice gives the same values.
fn check(dataset: &dyn Dataset, sample: u64) {
    let read = || HostBatch::read(dataset, &[sample], 1).map_err(|error| error.to_string());
    assert_eq!(read().map(|it| it.values), read().map(|it| it.values));
}

fn ending(bytes: &[u8]) -> &'static str {
    if bytes.starts_with(b"\x89PNG") {
        ".png"
    } else {
        ".jpg"
    }
}
