//! Messages between processes of a replica about copies of the state: a length (4 bytes, little
//! endian), then JSON. The bytes of a copy follow the message that announces them.

use std::io::{self, Read, Write};

use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::local_copies::Contents;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most bytes of a message that is read.
const MOST_BYTES: u32 = 1 << 20;

/// What a process asks of a process in another pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    /// The life of the process that asks.
    pub life: String,
    pub operation: Operation,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Operation {
    /// Lists the copies in the pod.
    List,
    /// Sends a copy that the pod has.
    Fetch { shard: u32, id: CheckpointId },
    /// Stores a copy, whose bytes follow. First deletes `strays`, which belong elsewhere, and the
    /// other copies of its shard, except `kept`.
    #[serde(rename_all = "camelCase")]
    Store {
        shard: u32,
        id: CheckpointId,
        kept: Option<CheckpointId>,
        strays: Vec<(u32, CheckpointId)>,
        num_bytes: u64,
    },
    /// Deletes a copy that the pod has.
    Delete { shard: u32, id: CheckpointId },
    /// Deletes all copies of a shard, also one that is being stored.
    Discard { shard: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Answer {
    Contents(Contents),
    /// The bytes of a copy follow.
    #[serde(rename_all = "camelCase")]
    Copy {
        num_bytes: u64,
    },
    Done,
    Refused(String),
}

pub(super) fn send(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_le_bytes()[..], &text].concat())
}

pub(super) fn receive<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MOST_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length as usize];
    stream.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let id = CheckpointId {
            generation: 3,
            step: 7,
        };
        let all = [
            Operation::List,
            Operation::Fetch { shard: 1, id },
            Operation::Store {
                shard: 1,
                id,
                kept: Some(id),
                strays: vec![(2, id)],
                num_bytes: 9,
            },
            Operation::Delete { shard: 1, id },
            Operation::Discard { shard: 1 },
        ];
        for operation in all {
            let request = Request {
                life: "0-1-a".to_owned(),
                operation,
            };
            let mut bytes = Vec::new();
            send(&mut bytes, &request).unwrap();
            assert_eq!(receive::<Request>(&mut &*bytes).unwrap(), request);
        }
        let mut bytes = Vec::new();
        let contents = Contents::from([(2, [id].into())]);
        send(&mut bytes, &Answer::Contents(contents.clone())).unwrap();
        let found = receive::<Answer>(&mut &*bytes).unwrap();
        assert_eq!(found, Answer::Contents(contents));
    }

    #[test]
    fn long_message_is_not_read() {
        let bytes = [255; 8];
        let error = receive::<Request>(&mut &bytes[..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
