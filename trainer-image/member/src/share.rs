//! Sending the state from the rank that has it to those that lack it, in chunks.
//!
//! All ranks take part, but only those that lack the state write to theirs: a rank that has it receives into a
//! chunk that is thrown away, so whatever happens to the sender, the state is where it was.
//!
//! Over NCCL a peer that aborts may make a broadcast end with garbage on ranks that have not aborted (see
//! `world/witness.rs`). So the sender adds a digest of all it sent. A rank that finds another one doubts the group.

use std::ops::Range;

use crate::failure::Failure;
use crate::group::Group;
use crate::state::State;

/// Most bytes of a chunk. Large enough for the bandwidth of the fastest links, small beside a state; a chunk that
/// has moved counts as progress.
pub const CHUNK_BYTES: u64 = 64 << 20;
/// Odd, so that what is multiplied by it can be told from what is not (Knuth's multiplicative hash).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Length of a digest.
pub(crate) const DIGEST_BYTES: usize = 8;

/// What a rank does with a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends its own bytes.
    Sends,
    /// Overwrites its own bytes.
    Receives,
    /// Has the bytes, and throws away what comes.
    Keeps,
    /// Should have the same bytes, and overwrites them only if they are others.
    Compares,
}

/// Bytes of the state that move at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Which bytes of the row.
    pub bytes: Range<u64>,
    /// The rank that sends them.
    pub source: u32,
    /// What this rank does.
    pub role: Role,
}

/// What came of moving a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// [`sum_of_words`] of the bytes that were sent, or that came.
    pub digest: u64,
    /// Whether bytes of this rank's state are others now.
    pub has_changed: bool,
}

/// A state that can go from rank to rank of a group.
pub trait Share<G: Group>: State {
    /// Moves a chunk. A collective: all ranks of the group call it for the same bytes and source. It returns when
    /// the bytes have come.
    ///
    /// [`move_in_host_memory`] does it for any state and any group. A state on a device does it there.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone, [`Failure::State`] when bytes cannot be copied.
    fn move_chunk(&mut self, group: &G, chunk: &Chunk) -> Result<Moved, Failure>;
}

/// [`Share::move_chunk`] by way of a buffer in host memory.
///
/// # Errors
/// As there.
pub fn move_in_host_memory<S: State + ?Sized, G: Group>(
    state: &mut S,
    group: &G,
    chunk: &Chunk,
) -> Result<Moved, Failure> {
    let Chunk {
        bytes,
        source,
        role,
    } = chunk;
    let length = usize::try_from(bytes.end - bytes.start)
        .map_err(|error| Failure::Internal(error.to_string()))?;
    let mut buffer = vec![0; length];
    if *role == Role::Sends {
        state.copy_out(bytes.clone(), &mut buffer)?;
    }
    group.broadcast(&mut buffer, *source)?;
    let has_changed = match role {
        Role::Sends | Role::Keeps => false,
        Role::Receives => true,
        Role::Compares => {
            let mut own = vec![0; length];
            state.copy_out(bytes.clone(), &mut own)?;
            own != buffer
        }
    };
    if has_changed {
        state.copy_in(bytes.start, &buffer)?;
    }
    Ok(Moved {
        digest: sum_of_words(&buffer),
        has_changed,
    })
}

/// Sum of the 64-bit little-endian words of some bytes, modulo 2^64; the last word is filled up with zeros. It can
/// be computed on a device without a copy, and has to tell accidents, not forgeries.
#[must_use]
pub fn sum_of_words(bytes: &[u8]) -> u64 {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    bytes
        .chunks(8)
        .fold(0, |sum, bytes| sum.wrapping_add(word(bytes)))
}

/// The chunks of a state of so many bytes.
pub(crate) fn chunks(num_bytes: u64, chunk_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let size = chunk_bytes.max(1);
    (0..num_bytes.div_ceil(size)).map(move |index| {
        let start = index * size;
        start..num_bytes.min(start + size)
    })
}

/// Digest of everything that was sent, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) const fn add(&mut self, part: u64) {
        self.0 = self.0.wrapping_mul(FACTOR).wrapping_add(part);
    }

    pub(crate) const fn to_bytes(self) -> [u8; DIGEST_BYTES] {
        self.0.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_makes_another_digest() {
        let digest = |parts: &[&[u8]]| {
            let mut digest = Digest::default();
            for part in parts {
                digest.add(sum_of_words(part));
            }
            digest
        };
        let whole = digest(&[b"some words", b"more"]);
        assert_eq!(digest(&[b"some words", b"more"]), whole);
        for other in [
            &[b"some wordz".as_slice(), b"more"][..],
            &[b"some words", b"mor"],
            &[b"more", b"some words"],
            &[b"some words"],
            &[b"", b"more"],
        ] {
            assert_ne!(digest(other), whole, "{other:?}");
        }
    }

    #[test]
    fn chunks_are_all_the_bytes_in_order() {
        assert_eq!(chunks(0, 4).count(), 0);
        let found: Vec<_> = chunks(10, 4).collect();
        assert_eq!(found, [0..4, 4..8, 8..10]);
        assert_eq!(chunks(8, 4).collect::<Vec<_>>(), [0..4, 4..8]);
    }
}
