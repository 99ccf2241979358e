//! Sending the state from the rank that has it to those that lack it, in chunks.
//!
//! All ranks take part, but only those that lack the state write to theirs: a rank that has it receives into a
//! chunk that is thrown away, so whatever happens to the sender, the state is where it was.
//!
//! Over NCCL a peer that aborts may make a broadcast end with garbage on ranks that have not aborted (see
//! `world/witness.rs`). So each chunk ends with its [`seal`], which is checked before any byte is written, and all of
//! them with a digest of everything. A rank that finds another one takes a peer for lost.

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

/// What a chunk ends with: a function of the [`sum_of_words`] of its bytes and of where they lie. Zeros are not
/// sealed, and neither is what is left of another chunk.
#[must_use]
pub const fn seal(sum_of_words: u64, offset: u64) -> u64 {
    sum_of_words
        .wrapping_add(offset)
        .wrapping_add(1)
        .wrapping_mul(FACTOR)
}

/// The error of a rank that got another seal than [`seal`] of what came.
#[must_use]
pub fn garbled() -> Failure {
    Failure::PeerLost(
        "a part of the state is not what was sent: a peer is aborting the group".to_owned(),
    )
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
    let mut sealed = vec![0; length + DIGEST_BYTES];
    if *role == Role::Sends {
        let (buffer, end) = sealed.split_at_mut(length);
        state.copy_out(bytes.clone(), buffer)?;
        end.copy_from_slice(&seal(sum_of_words(buffer), bytes.start).to_le_bytes());
    }
    group.broadcast(&mut sealed, *source)?;
    group.check()?;
    let (buffer, end) = sealed.split_at(length);
    let digest = sum_of_words(buffer);
    if end != seal(digest, bytes.start).to_le_bytes() {
        return Err(garbled());
    }
    let has_changed = match role {
        Role::Sends | Role::Keeps => false,
        Role::Receives => true,
        Role::Compares => {
            let mut own = vec![0; length];
            state.copy_out(bytes.clone(), &mut own)?;
            own.as_slice() != buffer
        }
    };
    if has_changed {
        state.copy_in(bytes.start, buffer)?;
    }
    Ok(Moved {
        digest,
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
    use crate::group::Abort;
    use crate::state::tests::{Bytes, NUM_BYTES};

    /// A group of one that delivers what it is told, whatever was sent.
    #[derive(Debug)]
    struct Delivers(u8);

    impl Abort for Delivers {
        fn abort(&self) {}
    }

    impl Group for Delivers {
        fn rank(&self) -> u32 {
            0
        }
        fn size(&self) -> u32 {
            1
        }
        fn sum(&self, _: &mut [f64]) -> Result<(), Failure> {
            Ok(())
        }
        fn broadcast(&self, bytes: &mut [u8], _: u32) -> Result<(), Failure> {
            bytes.fill(self.0);
            Ok(())
        }
        fn check(&self) -> Result<(), Failure> {
            Ok(())
        }
        fn tells_lost_peers(&self) -> bool {
            false
        }
    }

    #[test]
    fn garbage_is_not_written_to_the_state() {
        for garbage in [0, 7, 0xff] {
            for role in [Role::Receives, Role::Compares, Role::Keeps] {
                let mut state = Bytes::filled(3);
                let chunk = Chunk {
                    bytes: 0..NUM_BYTES,
                    source: 0,
                    role,
                };
                let moved = move_in_host_memory(&mut state, &Delivers(garbage), &chunk);
                assert!(matches!(moved, Err(Failure::PeerLost(_))), "{role:?}");
                assert_eq!(state, Bytes::filled(3));
            }
        }
    }

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
    fn neither_zeros_nor_another_chunk_are_sealed() {
        let sum = sum_of_words(b"some words");
        assert_ne!(seal(sum, 0), seal(sum, 64));
        assert_ne!(seal(sum, 0), seal(sum + 1, 0));
        assert_ne!(seal(0, 0), 0);
    }

    #[test]
    fn chunks_are_all_the_bytes_in_order() {
        assert_eq!(chunks(0, 4).count(), 0);
        let found: Vec<_> = chunks(10, 4).collect();
        assert_eq!(found, [0..4, 4..8, 8..10]);
        assert_eq!(chunks(8, 4).collect::<Vec<_>>(), [0..4, 4..8]);
    }
}
