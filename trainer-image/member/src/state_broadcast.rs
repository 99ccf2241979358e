//! Sends the state in chunks from ranks that have it to ranks that lack it.
//!
//! Chunks go from rank to rank (`form/carry.rs`). Only ranks that lack the state receive, so the
//! others keep it whatever happens to their peers.
//!
//! With NCCL, an aborting peer may make a receive return garbage on ranks that have not aborted
//! (see `world/sum_checksum.rs`). So each chunk ends with its [`seal`], which is verified before
//! any byte is written, and the last message has a digest of everything. A rank that finds a
//! mismatch treats a peer as lost.

use std::ops::Range;

use crate::failure::Failure;
use crate::group::{Group, Meanwhile};
use crate::state::State;

/// Maximum size of a chunk: large enough for the bandwidth of fast links and small compared to a
/// state, because a forwarding rank is one chunk behind the rank before it.
pub const CHUNK_BYTES: u64 = 8 << 20;
/// Factor of Knuth's multiplicative hash. It is odd, so multiplication is invertible.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Length of a digest in bytes.
pub(crate) const DIGEST_BYTES: usize = 8;

/// Result of writing a received chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// [`sum_of_words`] of the bytes.
    pub digest: u64,
    /// Whether bytes of this rank's state have changed.
    pub has_changed: bool,
}

/// A state that can be sent from rank to rank of a group.
///
/// A [`HostState`] is sent through host memory over any group. A state on a device is sent from
/// there.
pub trait StateBroadcast<G: Group>: State {
    /// Memory for a chunk and its [`seal`] from which the group can send.
    type Parcel;

    /// Allocates a parcel for a chunk of this length.
    ///
    /// # Errors
    /// A failure if there is not enough memory.
    fn parcel(&self, group: &G, length: u64) -> Result<Self::Parcel, Failure>;

    /// Copies bytes of the row into a parcel of their length and seals it. Returns their
    /// [`sum_of_words`].
    ///
    /// # Errors
    /// [`Failure::State`] if the bytes cannot be copied.
    fn pack(&self, bytes: &Range<u64>, parcel: &mut Self::Parcel) -> Result<u64, Failure>;

    ///
    /// # Errors
    /// Those of [`Group::exchange`].
    fn exchange(
        group: &G,
        send: Option<(&Self::Parcel, u32)>,
        receive: Option<(&mut Self::Parcel, u32)>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<(), Failure>;

    /// Overwrites bytes of the row with those of a received parcel; if `compares`, only where they
    /// differ.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if the seal does not match or the group is being aborted; then nothing
    /// was written. [`Failure::State`] if bytes cannot be copied.
    fn open(
        &mut self,
        group: &G,
        parcel: &Self::Parcel,
        bytes: &Range<u64>,
        compares: bool,
    ) -> Result<Opened, Failure>;
}

/// A state that is sent through host memory, over any group.
pub trait HostState: State {}

impl<G: Group, S: HostState> StateBroadcast<G> for S {
    type Parcel = HostParcel;

    fn parcel(&self, _: &G, length: u64) -> Result<HostParcel, Failure> {
        HostParcel::new(length)
    }

    fn pack(&self, bytes: &Range<u64>, parcel: &mut HostParcel) -> Result<u64, Failure> {
        parcel.pack(self, bytes)
    }

    fn exchange(
        group: &G,
        send: Option<(&HostParcel, u32)>,
        receive: Option<(&mut HostParcel, u32)>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<(), Failure> {
        let send = send.map(|(parcel, to)| (parcel.0.as_slice(), to));
        let receive = receive.map(|(parcel, from)| (parcel.0.as_mut_slice(), from));
        group.exchange(send, receive, meanwhile)
    }

    fn open(
        &mut self,
        group: &G,
        parcel: &HostParcel,
        bytes: &Range<u64>,
        compares: bool,
    ) -> Result<Opened, Failure> {
        group.check()?;
        parcel.open(self, bytes, compares)
    }
}

/// The end of a chunk: a function of the [`sum_of_words`] of its bytes and of their position. Zeros
/// and leftovers of another chunk do not have a valid seal.
#[must_use]
pub const fn seal(sum_of_words: u64, offset: u64) -> u64 {
    sum_of_words
        .wrapping_add(offset)
        .wrapping_add(1)
        .wrapping_mul(FACTOR)
}

/// The failure of a rank that received a chunk with an invalid seal.
#[must_use]
pub fn garbled() -> Failure {
    Failure::PeerLost(
        "a part of the state is not what was sent: a peer is aborting the group".to_owned(),
    )
}

/// A chunk in host memory, with its seal.
#[derive(Debug)]
pub struct HostParcel(Vec<u8>);

impl HostParcel {
    fn new(length: u64) -> Result<Self, Failure> {
        let length =
            usize::try_from(length).map_err(|error| Failure::Internal(error.to_string()))?;
        Ok(Self(vec![0; length + DIGEST_BYTES]))
    }

    fn pack(&mut self, state: &impl State, bytes: &Range<u64>) -> Result<u64, Failure> {
        let length = self.0.len() - DIGEST_BYTES;
        let (buffer, end) = self.0.split_at_mut(length);
        state.copy_out(bytes.clone(), buffer)?;
        let digest = sum_of_words(buffer);
        end.copy_from_slice(&seal(digest, bytes.start).to_le_bytes());
        Ok(digest)
    }

    fn open(
        &self,
        state: &mut impl State,
        bytes: &Range<u64>,
        compares: bool,
    ) -> Result<Opened, Failure> {
        let (buffer, end) = self.0.split_at(self.0.len() - DIGEST_BYTES);
        let digest = sum_of_words(buffer);
        if end != seal(digest, bytes.start).to_le_bytes() {
            return Err(garbled());
        }
        let mut has_changed = true;
        if compares {
            let mut own = vec![0; buffer.len()];
            state.copy_out(bytes.clone(), &mut own)?;
            has_changed = own.as_slice() != buffer;
        }
        if has_changed {
            state.copy_in(bytes.start, buffer)?;
        }
        Ok(Opened {
            digest,
            has_changed,
        })
    }
}

/// Sum of the 64-bit little-endian words of some bytes, modulo 2^64. The last word is padded with
/// zeros. A device can compute it without a copy. It detects accidents, not forgeries.
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

/// The chunks of a state of this size.
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

    /// A group of one that delivers this byte, whatever was sent.
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
        fn exchange(
            &self,
            _: Option<(&[u8], u32)>,
            receive: Option<(&mut [u8], u32)>,
            _: Meanwhile<'_>,
        ) -> Result<(), Failure> {
            if let Some((bytes, _)) = receive {
                bytes.fill(self.0);
            }
            Ok(())
        }
        fn check(&self) -> Result<(), Failure> {
            Ok(())
        }
        fn reports_lost_peers(&self) -> bool {
            false
        }
    }

    #[test]
    fn garbage_is_not_written_to_the_state() {
        for garbage in [0, 7, 0xff] {
            for compares in [false, true] {
                let (mut state, bytes) = (Bytes::filled(3), 0..NUM_BYTES);
                let group = Delivers(garbage);
                let mut parcel = state.parcel(&group, NUM_BYTES).unwrap();
                let receive = Some((&mut parcel, 0));
                Bytes::exchange(&group, None, receive, &mut || Ok(())).unwrap();
                let opened = state.open(&group, &parcel, &bytes, compares);
                assert!(matches!(opened, Err(Failure::PeerLost(_))), "{garbage}");
                assert_eq!(state, Bytes::filled(3));
            }
        }
    }

    #[test]
    fn digest_detects_each_difference() {
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
    fn seal_rejects_zeros_and_other_chunks() {
        let sum = sum_of_words(b"some words");
        assert_ne!(seal(sum, 0), seal(sum, 64));
        assert_ne!(seal(sum, 0), seal(sum + 1, 0));
        assert_ne!(seal(0, 0), 0);
    }

    #[test]
    fn chunks_cover_all_bytes_in_order() {
        assert_eq!(chunks(0, 4).count(), 0);
        let found: Vec<_> = chunks(10, 4).collect();
        assert_eq!(found, [0..4, 4..8, 8..10]);
        assert_eq!(chunks(8, 4).collect::<Vec<_>>(), [0..4, 4..8]);
    }
}
