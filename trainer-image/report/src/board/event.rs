//! Event files of `TensorBoard`, as far as scalars need them.
//!
//! A file is a sequence of `TFRecords`: the length of the data (8 bytes, little-endian), its masked
//! CRC-32C, the data, and their masked CRC-32C (`tensorflow/core/lib/io/record_writer.h`,
//! `tensorflow/core/lib/hash/crc32c.h`). The data are an `Event` in the encoding of Protocol
//! Buffers, with these fields of `tensorflow/core/util/event.proto` and
//! `tensorflow/core/framework/summary.proto`:
//! ```text
//! Event       1 wall_time: double   2 step: int64   3 file_version: string
//!             5 summary: Summary    7 session_log: SessionLog
//! Summary     1 value: repeated Value
//! Value       1 tag: string         2 simple_value: float
//! SessionLog  1 status: enum (START = 1)
//! ```

/// Version in the first event of each file.
const FILE_VERSION: &[u8] = b"brain.Event:2";
/// Value of `SessionLog.START` in the protocol.
const START: u64 = 1;
/// Wire types of Protocol Buffers.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// The contents of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The version of the format, at the start of each file.
    FileVersion,
    /// Training continues from here: `TensorBoard` drops what it has of this step and of later
    /// ones.
    Start,
    /// Values by tag, such as `train/loss`.
    Scalars(Vec<(&'static str, f64)>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Time in seconds since 1970.
    pub wall_time: f64,
    /// Number of committed steps.
    pub step: u64,
    pub what: What,
}

impl Event {
    /// Encodes the event as a `TFRecord`.
    #[must_use]
    pub fn to_record(&self) -> Vec<u8> {
        record(&self.to_bytes())
    }

    fn to_bytes(&self) -> Vec<u8> {
        let Self {
            wall_time,
            step,
            what,
        } = self;
        let mut event = Vec::new();
        key(&mut event, 1, FIXED64);
        event.extend(wall_time.to_le_bytes());
        key(&mut event, 2, VARINT);
        varint(&mut event, *step);
        match what {
            What::FileVersion => bytes(&mut event, 3, FILE_VERSION),
            What::Start => {
                let mut log = Vec::new();
                key(&mut log, 1, VARINT);
                varint(&mut log, START);
                bytes(&mut event, 7, &log);
            }
            What::Scalars(scalars) => {
                let mut summary = Vec::new();
                for (tag, scalar) in scalars {
                    bytes(&mut summary, 1, &value(tag, *scalar));
                }
                bytes(&mut event, 5, &summary);
            }
        }
        event
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "TensorBoard's scalars are 32-bit floats"
)]
fn value(tag: &str, scalar: f64) -> Vec<u8> {
    let mut value = Vec::new();
    bytes(&mut value, 1, tag.as_bytes());
    key(&mut value, 2, FIXED32);
    value.extend((scalar as f32).to_le_bytes());
    value
}

fn key(message: &mut Vec<u8>, field: u64, wire_type: u64) {
    varint(message, field << 3 | wire_type);
}

/// Seven bits in a byte, the lowest first; the highest bit says that more follow.
fn varint(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    message.push(number.to_le_bytes()[0]);
}

fn bytes(message: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    key(message, field, BYTES);
    varint(message, bytes.len() as u64);
    message.extend(bytes);
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &checksum(&length), data, &checksum(data)].concat()
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let crc = crc32c::crc32c(bytes);
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What TensorFlow's protobuf makes of the same event (`event.SerializeToString()`).
    #[test]
    fn event_bytes_equal_protobuf() {
        let event = Event {
            wall_time: 1.5,
            step: 300,
            what: What::Scalars(vec![("a/b", 0.5)]),
        };
        let expected = [
            &[0x09][..],
            &1.5_f64.to_le_bytes(),
            &[0x10, 0xac, 0x02, 0x2a, 0x0c, 0x0a, 0x0a],
            &[0x0a, 0x03, b'a', b'/', b'b', 0x15],
            &0.5_f32.to_le_bytes(),
        ]
        .concat();
        assert_eq!(event.to_bytes(), expected);
    }

    #[test]
    fn a_record_has_its_length_and_masked_checksums() {
        // CRC-32C of "123456789" is 0xe3069283 (RFC 3720, appendix B.4).
        let masked = 0xe306_9283_u32.rotate_right(15).wrapping_add(0xa282_ead8);
        let record = record(b"123456789");
        assert_eq!(record[..8], 9_u64.to_le_bytes());
        assert_eq!(record[8..12], checksum(&9_u64.to_le_bytes()));
        assert_eq!(record[12..21], *b"123456789");
        assert_eq!(record[21..], masked.to_le_bytes());
    }
}
