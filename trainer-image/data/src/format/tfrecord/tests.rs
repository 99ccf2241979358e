use proptest::prelude::{ProptestConfig, any, proptest};

use super::*;
use crate::cache::Cache;
use crate::format::shards::Shards;
use crate::format::testing::example;
use crate::image::{Record, Records};

fn open(bytes: &[u8]) -> Result<(tempfile::TempDir, Shards<TfRecord>), DataError> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("train-00000-of-00001"), bytes).unwrap();
    let shards = Shards::open(TfRecord, directory.path(), &Cache::default())?;
    Ok((directory, shards))
}

fn read(shards: &Shards<TfRecord>, number: u64) -> Result<(i64, Vec<u8>), String> {
    let mut bytes = Vec::new();
    match shards.read(number, &mut bytes) {
        Ok(Record::Encoded { label } | Record::Raw { label, .. }) => Ok((label, bytes)),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn checksum_is_that_of_the_format() {
    // CRC-32C of "123456789" is 0xe3069283 (RFC 3720, B.4 polynomial), masked like TensorFlow does.
    let masked = 0xe306_9283_u32.rotate_right(15).wrapping_add(0xa282_ead8);
    assert_eq!(checksum(b"123456789"), masked.to_le_bytes());
}

#[test]
fn images_and_labels_are_read_packed_or_not() {
    let mut bytes = frame(&example(b"first", 300, true));
    bytes.extend(frame(&example(b"second", 2, false)));
    let (_directory, shards) = open(&bytes).unwrap();
    assert_eq!(read(&shards, 0), Ok((300, b"first".to_vec())));
    assert_eq!(read(&shards, 1), Ok((2, b"second".to_vec())));
    assert_eq!((shards.num_records(), shards.num_classes()), (2, 301));
}

#[test]
fn flipped_bit_corrupts_one_record_or_breaks_the_file() {
    let mut bytes = frame(&example(b"first", 1, true));
    let second = bytes.len();
    bytes.extend(frame(&example(b"second", 2, true)));
    let mut flipped = bytes.clone();
    flipped[30] ^= 1;
    let (_directory, shards) = open(&flipped).unwrap();
    let text = read(&shards, 0).unwrap_err();
    assert!(
        text.contains("train-00000-of-00001 at byte 12: the checksum"),
        "{text}"
    );
    assert!(read(&shards, 1).is_ok());
    flipped = bytes;
    flipped[second] ^= 1;
    let text = open(&flipped).unwrap_err().to_string();
    assert!(text.contains(&format!("at byte {second}")), "{text}");
}

#[test]
fn truncated_file_loses_its_last_record() {
    let mut bytes = frame(&example(b"first", 1, true));
    let second = bytes.len();
    bytes.extend(frame(&example(b"second", 2, true)));
    let (_directory, shards) = open(&bytes[..second + 20]).unwrap();
    assert!(read(&shards, 0).is_ok());
    assert!(read(&shards, 1).unwrap_err().contains("the file ends"));
    let text = open(&bytes[..second + 5]).unwrap_err().to_string();
    assert!(text.contains("truncated"), "{text}");
}

#[test]
fn record_without_image_or_label_is_corrupt() {
    let (_directory, shards) = open(&frame(b"")).unwrap();
    assert!(read(&shards, 0).unwrap_err().contains("no image/encoded"));
    let (_directory, shards) = open(&frame(b"\xff\xff")).unwrap();
    assert!(
        read(&shards, 0)
            .unwrap_err()
            .contains("not a tf.train.Example")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60), at: usize) {
        let _ = Example::parse(&bytes);
        let mut good = example(b"image", 3, true);
        let at = at % good.len();
        good[at] = bytes.first().copied().unwrap_or(0);
        let _ = Example::parse(&good);
    }
}
