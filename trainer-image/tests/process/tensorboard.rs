//! Event files for `TensorBoard` beside the checkpoints, read back by a parser of their format.

use std::path::Path;

use roundhouse_data::format::shards::Shard;
use roundhouse_data::format::tfrecord::{TfRecord, frame};
use serde_json::json;

use crate::harness::{Job, config, every_steps};

/// Steps of an epoch of the digits; an evaluation follows each epoch.
const EPOCH: u64 = 24;

/// A field of a Protocol Buffers message: numbers as their bits.
#[derive(Debug)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    number
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

/// The fields of a message with their numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => Field::Number(u64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap())),
            2 => {
                let length = varint(&mut bytes);
                Field::Bytes(take(&mut bytes, usize::try_from(length).unwrap()))
            }
            5 => {
                let bits = u32::from_le_bytes(take(&mut bytes, 4).try_into().unwrap());
                Field::Number(bits.into())
            }
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, field));
    }
    fields
}

fn number(fields: &[(u64, Field<'_>)], wanted: u64) -> Option<u64> {
    fields.iter().find_map(|(field, value)| match value {
        Field::Number(value) if *field == wanted => Some(*value),
        Field::Number(_) | Field::Bytes(_) => None,
    })
}

fn message<'a>(fields: &[(u64, Field<'a>)], wanted: u64) -> Option<&'a [u8]> {
    fields.iter().find_map(|(field, value)| match value {
        Field::Bytes(value) if *field == wanted => Some(*value),
        Field::Number(_) | Field::Bytes(_) => None,
    })
}

/// All scalars of a file: step, tag, value. Asserts the checksums of lengths and data, and the
/// header of the file.
fn scalars(path: &Path) -> Vec<(u64, String, f32)> {
    TfRecord.index(path).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let mut scalars = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some(length) = rest.first_chunk() {
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
        let data = &rest[12..12 + length];
        let is_first = rest.len() == bytes.len();
        assert_eq!(take(&mut rest, length + 16), frame(data));
        let event = fields(data);
        assert!(f64::from_bits(number(&event, 1).unwrap()) > 1e9);
        if is_first {
            assert_eq!(message(&event, 3), Some(&b"brain.Event:2"[..]));
        }
        let step = number(&event, 2).unwrap();
        let summary = message(&event, 5).map(fields).unwrap_or_default();
        for (_, value) in summary {
            let Field::Bytes(value) = value else {
                panic!("{value:?}");
            };
            let value = fields(value);
            let tag = String::from_utf8(message(&value, 1).unwrap().to_vec()).unwrap();
            let bits = u32::try_from(number(&value, 2).unwrap()).unwrap();
            scalars.push((step, tag, f32::from_bits(bits)));
        }
    }
    assert!(rest.is_empty(), "nothing follows the last record");
    scalars
}

#[test]
fn rank_0_writes_readable_event_files() {
    let volume = tempfile::tempdir().unwrap();
    let mut config = config();
    config["steps"] = json!(2 * EPOCH);
    config["tensorboard"] = json!(true);
    let checkpoint = every_steps(volume.path().to_owned(), 1_000);
    let mut job = Job::with_checkpoints(&config, 2, checkpoint);
    job.issue_when_ready(1);
    job.complete();
    let entries = std::fs::read_dir(volume.path().join("tensorboard")).unwrap();
    let files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(files[0].to_str().unwrap().contains("tfevents"));
    let scalars = scalars(&files[0]);
    let of = |wanted: &str| -> Vec<(u64, f32)> {
        let found = scalars.iter().filter(|(_, tag, _)| tag == wanted);
        found.map(|(step, _, value)| (*step, *value)).collect()
    };
    // The first step of a generation has a point; later points depend on time.
    let (step, rate) = of("train/learning_rate")[0];
    assert_eq!((step, rate), (1, 0.05));
    assert!(of("train/loss")[0].1 > 1.0 && of("train/gradient_norm")[0].1 > 0.0);
    let losses = of("eval/loss");
    let steps: Vec<u64> = losses.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [EPOCH, 2 * EPOCH]);
    for (_, loss) in &losses {
        let words = format!("test loss {loss:.4} ");
        assert!(job.logs().contains(&words), "{words}: {}", job.logs());
    }
    assert_eq!(of("eval/accuracy").len(), 2);
    assert!(of("eval/perplexity").is_empty() && of("speed/tokens_per_second").is_empty());
}

#[test]
fn training_without_a_volume_writes_no_event_files() {
    let mut config = config();
    config["tensorboard"] = json!(true);
    let mut job = Job::train(&config, 1, 1);
    job.complete();
    let logs = job.logs();
    assert!(logs.contains("no event files are written"), "{logs}");
}
