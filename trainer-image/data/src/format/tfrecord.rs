//! `TFRecord`: a sequence of length, checksum of the length, data, checksum of the data. The data
//! are `tf.train.Example`s. Checksums are CRC-32C, masked as in tensorflow/core/lib/hash/crc32c.h.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::shards::{MAX_RECORD_BYTES, NO_LABEL, Shard, Spans};
use crate::error::DataError;

mod example;

use example::Example;

const HEADER_BYTES: u64 = 12;
const FOOTER_BYTES: u64 = 4;

/// Reader of the `TFRecord` format.
#[derive(Clone, Copy, Debug)]
pub struct TfRecord;

/// Returns the masked checksum of bytes, little-endian.
fn checksum(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
        .to_le_bytes()
}

impl Shard for TfRecord {
    fn kind(&self) -> &'static str {
        "tfrecord-index"
    }

    fn endings(&self) -> &'static [&'static str] {
        &["", ".tfrecord", ".tfrecords"]
    }

    /// Reads the whole file once, because the labels are inside the records.
    fn index(&self, path: &Path) -> Result<Spans, DataError> {
        let file = File::open(path).map_err(DataError::io(path))?;
        let num_bytes = file.metadata().map_err(DataError::io(path))?.len();
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut spans = Spans::default();
        let mut offset = 0;
        let mut data = Vec::new();
        while offset < num_bytes {
            let invalid =
                |reason: &str| DataError::invalid(path, format!("{reason} at byte {offset}"));
            if num_bytes - offset < HEADER_BYTES {
                return Err(invalid("the file is truncated"));
            }
            let mut header = [0; 12];
            reader
                .read_exact(&mut header)
                .map_err(DataError::io(path))?;
            let [length @ .., a, b, c, d] = header;
            if checksum(&length) != [a, b, c, d] {
                return Err(invalid("the checksum of a record's length is wrong"));
            }
            let length = u64::from_le_bytes(length);
            let start = offset + HEADER_BYTES;
            if length > MAX_RECORD_BYTES {
                return Err(invalid("a record is longer than 1 GiB"));
            }
            offset = start + length + FOOTER_BYTES;
            let small = u32::try_from(length).unwrap_or(u32::MAX);
            if offset > num_bytes {
                // The error is found again, and reported, when the record is read.
                spans.push(start, small, NO_LABEL);
                break;
            }
            data.resize(usize::try_from(length + FOOTER_BYTES).unwrap_or(0), 0);
            reader.read_exact(&mut data).map_err(DataError::io(path))?;
            let label = checked(&data)
                .ok()
                .and_then(|data| Example::parse(data).ok()?.label);
            spans.push(start, small, label.unwrap_or(NO_LABEL));
        }
        Ok(spans)
    }

    fn open(&self, bytes: &mut Vec<u8>, _: i64) -> Result<i64, String> {
        let Example { image, label } = Example::parse(checked(bytes)?)?;
        let image = image.ok_or("the record has no image/encoded")?;
        let label = label.ok_or("the record has no image/class/label")?;
        bytes.truncate(image.end);
        bytes.drain(..image.start);
        Ok(label)
    }

    fn margins(&self) -> (u64, u64) {
        (0, FOOTER_BYTES)
    }
}

/// Returns the data without the checksum that follows them, if the checksum is correct.
fn checked(bytes: &[u8]) -> Result<&[u8], String> {
    match bytes.split_last_chunk::<4>() {
        Some((data, sum)) if checksum(data) == *sum => Ok(data),
        _ => Err("the checksum of the record is wrong".to_owned()),
    }
}

/// Formats a record as in a file, for tests and for programs that write such files.
#[must_use]
pub fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut bytes = length.to_vec();
    bytes.extend(checksum(&length));
    bytes.extend(data);
    bytes.extend(checksum(data));
    bytes
}

#[cfg(test)]
mod tests;
