use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

use super::*;

fn idx(dimensions: &[u32], values: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, UNSIGNED_BYTE, u8::try_from(dimensions.len()).unwrap()];
    bytes.extend(dimensions.iter().flat_map(|size| size.to_be_bytes()));
    bytes.extend(values);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";

/// Two training images and one test image of 2x1 pixels.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    write(&directory, TRAIN_IMAGES, &idx(&[2, 2, 1], &[1, 2, 3, 4]));
    write(&directory, TRAIN_LABELS, &idx(&[2], &[0, 1]));
    write(&directory, TEST_IMAGES, &idx(&[1, 2, 1], &[5, 6]));
    write(&directory, TEST_LABELS, &idx(&[1], &[1]));
    directory
}

fn write(directory: &TempDir, name: &str, bytes: &[u8]) {
    std::fs::write(directory.path().join(name), bytes).unwrap();
}

#[test]
fn a_plain_data_set_is_read() {
    let (train, test) = open(directory().path()).unwrap();
    assert_eq!((train.num_records(), test.num_records()), (2, 1));
    let size = train.size();
    assert_eq!((size.num_channels, size.height, size.width), (1, 2, 1));
    assert_eq!((train.num_classes(), test.num_classes()), (2, 2));
    let mut pixels = Vec::new();
    let record = train.read(1, &mut pixels).unwrap();
    assert_eq!(
        (record, pixels),
        (Record::Raw { label: 1, size }, vec![3, 4])
    );
}

#[test]
fn gzipped_file_is_read_under_both_names() {
    let directory = directory();
    std::fs::remove_file(directory.path().join(TRAIN_LABELS)).unwrap();
    let packed = gzip(&idx(&[2], &[0, 1]));
    write(&directory, &format!("{TRAIN_LABELS}.gz"), &packed);
    write(&directory, TEST_LABELS, &gzip(&idx(&[1], &[1])));
    assert!(open(directory.path()).is_ok());
}

#[test]
fn each_defect_names_its_file_and_reason() {
    let long = |mut bytes: Vec<u8>| {
        bytes.push(0);
        bytes
    };
    let cut = |bytes: Vec<u8>| bytes[..bytes.len() - 1].to_vec();
    let images = idx(&[2, 2, 1], &[1, 2, 3, 4]);
    let mut signed = images.clone();
    signed[2] = 9;
    let mut flipped = gzip(&images);
    let middle = flipped.len() - 6;
    flipped[middle] ^= 0xff;
    let cases: [(&str, Vec<u8>, &str); 15] = [
        (TRAIN_IMAGES, Vec::new(), "truncated"),
        (TRAIN_IMAGES, images[..9].to_vec(), "truncated"),
        (TRAIN_IMAGES, cut(images.clone()), "truncated"),
        (TRAIN_IMAGES, cut(gzip(&images)), "truncated"),
        (TRAIN_IMAGES, flipped, "cannot be read"),
        (TRAIN_IMAGES, long(images.clone()), "more than the 4 values"),
        (TRAIN_IMAGES, b"P5 2 1 255".to_vec(), "is not an IDX file"),
        (TRAIN_IMAGES, signed, "magic 0x00000903"),
        (TRAIN_IMAGES, idx(&[2], &[0, 1]), "magic 0x00000801"),
        (TRAIN_IMAGES, idx(&[u32::MAX; 3], &[0; 8]), "truncated"),
        (TRAIN_IMAGES, idx(&[0, 2, 1], &[]), "no images"),
        (
            TRAIN_LABELS,
            idx(&[3], &[0, 1, 1]),
            "3 labels for the 2 images",
        ),
        (TRAIN_LABELS, idx(&[2], &[0, 0]), "two classes"),
        (TEST_IMAGES, idx(&[1, 1, 2], &[5, 6]), "images are 1x2"),
        (
            TEST_LABELS,
            idx(&[1], &[2]),
            "label 2 of sample 0 is out of range",
        ),
    ];
    for (name, bytes, reason) in cases {
        let directory = directory();
        write(&directory, name, &bytes);
        let text = open(directory.path()).unwrap_err().to_string();
        assert!(
            text.contains(name) && text.contains(reason),
            "{reason}: {text}"
        );
    }
}

#[test]
fn a_missing_file_is_named() {
    let directory = directory();
    std::fs::remove_file(directory.path().join(TEST_LABELS)).unwrap();
    let text = open(directory.path()).unwrap_err().to_string();
    assert!(
        text.contains(TEST_LABELS) && text.contains("missing"),
        "{text}"
    );
}
