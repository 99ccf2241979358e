//! SHA-256 digests, written as 64 hexadecimal digits in manifests and ledgers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; Self::NUM_BYTES]);

impl Digest {
    /// Length of a digest in bytes.
    pub const NUM_BYTES: usize = 32;

    /// Hashes the concatenation of the parts.
    #[must_use]
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = Sha256::new();
        for part in parts {
            hasher.update(part);
        }
        Self(hasher.finalize().into())
    }

    #[must_use]
    pub const fn bytes(&self) -> &[u8; Self::NUM_BYTES] {
        &self.0
    }

    /// The first 52 bits. A 64-bit float represents them exactly, so ranks can exchange
    /// them in a sum.
    #[must_use]
    pub const fn number(&self) -> u64 {
        match self.0.first_chunk() {
            Some(first) => u64::from_be_bytes(*first) >> 12,
            None => 0,
        }
    }

    /// Wraps the bytes of a digest.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::NUM_BYTES]) -> Self {
        Self(bytes)
    }
}

/// Hashes bytes that arrive in pieces.
#[derive(Clone, Debug, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds the next bytes to the hash.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// Returns the digest of all bytes added so far.
    #[must_use]
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The text is not a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoDigest;

impl fmt::Display for NoDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a digest has {} hexadecimal digits",
            2 * Digest::NUM_BYTES
        )
    }
}

impl std::error::Error for NoDigest {}

impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if text.len() != 2 * Self::NUM_BYTES || !is_plain {
            return Err(NoDigest);
        }
        let mut bytes = [0; Self::NUM_BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = text.get(2 * index..2 * index + 2).ok_or(NoDigest)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| NoDigest)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_sha_256_and_round_trips() {
        // FIPS 180-2, appendix B.1.
        let digest = Digest::of(&[b"a", b"bc"]);
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
    }

    #[test]
    fn other_text_is_not_a_digest() {
        for text in [
            "",
            "ba78",
            &"g".repeat(64),
            &"+".repeat(64),
            &"ä".repeat(32),
        ] {
            assert_eq!(text.parse::<Digest>(), Err(NoDigest), "{text}");
        }
    }
}
