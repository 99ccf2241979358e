//! A copy of one process' part of the state, as a file: the length of the header (8 bytes, little
//! endian), the header (JSON), the words of [`LocalState`](crate::LocalState), the own row of the
//! state. A file is complete when it gets its final name. A checksum detects a file that a power
//! failure has damaged.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use roundhouse_elastic::Digest;
use serde::{Deserialize, Serialize};

use crate::state_broadcast::sum_of_words;

/// Version of the format.
pub(super) const SCHEMA_VERSION: u32 = 1;
/// Number of bytes of one read or write, a multiple of a word.
const CHUNK: usize = 1 << 20;
/// Most bytes of a header that is read.
const MOST_HEADER_BYTES: u64 = 1 << 12;

/// What a copy must have in common with the process that reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Kind {
    pub schema_version: u32,
    /// Hash of the training's identity and of its tensors.
    pub training: Digest,
    /// Hash of the bytes of the state that the process has; absent if it has all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Digest>,
    /// Bytes of the process' own row.
    pub state_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    #[serde(flatten)]
    kind: Kind,
    words_bytes: u64,
    /// Sums of the words and of the row.
    sums: [u64; 2],
}

/// Writes a copy. Its bytes are durable when this returns.
pub(super) fn write(path: &Path, kind: &Kind, words: &[u8], row: &[u8]) -> io::Result<()> {
    let header = Header {
        kind: kind.clone(),
        words_bytes: words.len() as u64,
        sums: [sum_of_words(words), sum_of_words(row)],
    };
    let header = serde_json::to_vec(&header)?;
    let mut file = File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    file.write_all(words)?;
    file.write_all(row)?;
    file.sync_all()
}

/// Most bytes of a file with these words: its header is short.
pub(super) const fn most_bytes(kind: &Kind, words: &[u8]) -> u64 {
    kind.state_bytes + words.len() as u64 + MOST_HEADER_BYTES
}

/// Why a copy is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("{0}")]
    Io(io::Error),
    #[error("it is damaged")]
    Damaged,
    #[error("it belongs to another training or another division of the state")]
    Other,
}

/// Reads the words of a copy, and passes the row to `take` in order, with the position of each
/// chunk. The bytes are verified only when this returns. So call it once without effect before a
/// call that overwrites the state.
pub(super) fn read<E: From<Unusable>>(
    path: &Path,
    kind: &Kind,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<Vec<u8>, E> {
    let (mut file, header) = open(path, kind)?;
    let words_bytes = usize::try_from(header.words_bytes).map_err(|_| Unusable::Damaged)?;
    let mut words = vec![0; words_bytes];
    file.read_exact(&mut words).map_err(Unusable::from)?;
    let mut chunk = vec![0; CHUNK];
    let (mut at, mut sum) = (0, 0_u64);
    while at < header.kind.state_bytes {
        let left = usize::try_from(header.kind.state_bytes - at).unwrap_or(CHUNK);
        let chunk = &mut chunk[..left.min(CHUNK)];
        file.read_exact(chunk).map_err(Unusable::from)?;
        sum = sum.wrapping_add(sum_of_words(chunk));
        take(at, chunk)?;
        at += chunk.len() as u64;
    }
    if header.sums != [sum_of_words(&words), sum] {
        return Err(Unusable::Damaged.into());
    }
    Ok(words)
}

/// Opens a copy at its words. Fails if its length is not what the header says. Otherwise a damaged
/// length could make the process allocate all memory.
fn open(path: &Path, kind: &Kind) -> Result<(File, Header), Unusable> {
    let mut file = File::open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MOST_HEADER_BYTES {
        return Err(Unusable::Damaged);
    }
    let mut header = vec![0; usize::try_from(length).map_err(|_| Unusable::Damaged)?];
    file.read_exact(&mut header)?;
    let header: Header = serde_json::from_slice(&header).map_err(|_| Unusable::Damaged)?;
    if header.kind != *kind {
        return Err(Unusable::Other);
    }
    let parts = [8, length, header.words_bytes, header.kind.state_bytes];
    let expected = parts.into_iter().try_fold(0, u64::checked_add);
    if expected != Some(file.metadata()?.len()) {
        return Err(Unusable::Damaged);
    }
    Ok((file, header))
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Damaged,
            _ => Self::Io(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: [u8; 19] = [7; 19];

    fn kind() -> Kind {
        Kind {
            schema_version: SCHEMA_VERSION,
            training: Digest::of(&[b"training"]),
            layout: None,
            state_bytes: ROW.len() as u64,
        }
    }

    fn read_all(path: &Path, kind: &Kind) -> Result<(Vec<u8>, Vec<u8>), Unusable> {
        let mut row = Vec::new();
        let words = read(path, kind, |at, chunk| {
            assert_eq!(at, row.len() as u64);
            row.extend_from_slice(chunk);
            Ok::<(), Unusable>(())
        })?;
        Ok((words, row))
    }

    #[test]
    fn copies_round_trip() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copy");
        write(&path, &kind(), b"words", &ROW).unwrap();
        let (words, row) = read_all(&path, &kind()).unwrap();
        assert_eq!(
            (words.as_slice(), row.as_slice()),
            (&b"words"[..], &ROW[..])
        );
    }

    #[test]
    fn copies_of_other_kinds_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copy");
        write(&path, &kind(), b"words", &ROW).unwrap();
        let other = Digest::of(&[b"other"]);
        for kind in [
            Kind {
                training: other,
                ..kind()
            },
            Kind {
                layout: Some(other),
                ..kind()
            },
            Kind {
                schema_version: 2,
                ..kind()
            },
            Kind {
                state_bytes: 1,
                ..kind()
            },
        ] {
            let read = read_all(&path, &kind);
            assert!(matches!(read, Err(Unusable::Other)), "{kind:?} {read:?}");
        }
    }

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copy");
        write(&path, &kind(), b"words", &ROW).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&path, &changed).unwrap();
            assert!(read_all(&path, &kind()).is_err(), "byte {at}");
            std::fs::write(&path, &whole[..at]).unwrap();
            assert!(read_all(&path, &kind()).is_err(), "length {at}");
        }
    }
}
