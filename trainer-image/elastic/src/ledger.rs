//! The ledger: one line per committed step. Each line is hashed together with all lines before it.
//!
//! Each generation writes its own file, so no two process groups write the same file. The file
//! starts with a header that names the line from which it continues; the generation's lines follow.
//! In older files, lines after that one belong to a superseded branch.

use serde::{Deserialize, Serialize};

use crate::data_schedule::Batch;
use crate::digest::Digest;

pub mod chain;
mod identity;
mod loss;
pub mod repeats;

pub use chain::Chain;
pub use identity::LedgerIdentity;
pub use repeats::{Beginning, Repeat, Repeats, Source, Start};

/// The end of a chain of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// Generation that committed the last line's step; 0 before the first.
    pub generation: u64,
    /// Number of that step, from 1; 0 before the first.
    pub step: u64,
    /// Hash of the last line, which covers all lines before it.
    pub hash: Digest,
}

impl Head {
    /// Returns the head of a chain without lines.
    #[must_use]
    pub fn start(identity: &LedgerIdentity) -> Self {
        Self {
            generation: 0,
            step: 0,
            hash: identity.genesis(),
        }
    }

    /// Returns the line of the next step.
    #[must_use]
    pub fn next(&self, batch: &Batch, generation: u64, loss: f64) -> Line {
        self.line(batch, generation, loss, false)
    }

    /// Returns the line of the next step if it is committed without an update.
    #[must_use]
    pub fn next_skipped(&self, batch: &Batch, generation: u64, loss: f64) -> Line {
        self.line(batch, generation, loss, true)
    }

    fn line(&self, batch: &Batch, generation: u64, loss: f64, skipped: bool) -> Line {
        let mut line = Line {
            step: batch.step,
            generation,
            epoch: batch.epoch,
            start: batch.places.start,
            end: batch.places.end,
            loss: loss::canonical(loss),
            skipped,
            hash: self.hash,
        };
        line.hash = line.hash_after(&self.hash);
        line
    }
}

/// First line of a generation's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    pub generation: u64,
    /// The line of an older file that the first line of this file follows; `None` if the first line
    /// is the first of the ledger.
    pub previous: Option<Head>,
    /// Data, batch, seed and length of the training.
    #[serde(rename = "course")]
    pub identity: LedgerIdentity,
    /// The state with which the generation began; absent in files of earlier versions.
    /// No hash covers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
}

impl Header {
    /// Returns the hash with which the first line of the file is hashed.
    #[must_use]
    pub fn hash_before(&self) -> Digest {
        self.previous
            .map_or_else(|| self.identity.genesis(), |head| head.hash)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// Number of the step, from 1.
    pub step: u64,
    /// Generation that committed it.
    pub generation: u64,
    pub epoch: u64,
    /// First place of the step in the order of the epoch.
    pub start: u64,
    /// Place after the last one of the step.
    pub end: u64,
    /// Mean loss over the samples. A loss that is not finite is NaN here and `null` in the file.
    #[serde(with = "loss")]
    pub loss: f64,
    /// Whether the step was committed without an update, because its loss or
    /// gradient was not finite.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// Hash of the line before and of all fields above.
    pub hash: Digest,
}

impl Line {
    /// Computes the hash that this line must have after a line with the hash `previous`.
    #[must_use]
    pub fn hash_after(&self, previous: &Digest) -> Digest {
        let Self {
            step,
            generation,
            epoch,
            start,
            end,
            loss,
            skipped,
            hash: _,
        } = self;
        let skipped: &[u8] = if *skipped { b"skipped" } else { b"" };
        Digest::of(&[
            previous.bytes(),
            &step.to_le_bytes(),
            &generation.to_le_bytes(),
            &epoch.to_le_bytes(),
            &start.to_le_bytes(),
            &end.to_le_bytes(),
            &loss.to_bits().to_le_bytes(),
            skipped,
        ])
    }

    /// Returns the head of the chain that ends with this line.
    #[must_use]
    pub const fn head(&self) -> Head {
        Head {
            generation: self.generation,
            step: self.step,
            hash: self.hash,
        }
    }

    /// Formats the line as in the file, with the newline.
    #[must_use]
    pub fn to_text(&self) -> String {
        to_text(self)
    }
}

impl Header {
    /// Formats the header as in the file, with the newline.
    #[must_use]
    pub fn to_text(&self) -> String {
        to_text(self)
    }
}

/// Serialization of these structs cannot fail: they contain only numbers and digests.
fn to_text(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string(value).unwrap_or_default();
    text.push('\n');
    text
}

/// Name of a generation's file. Names sort in the order of the generations.
#[must_use]
pub fn file_name(generation: u64) -> String {
    format!("gen-{generation:010}.jsonl")
}

/// Parses the name of a file; `None` if it is not that of a ledger file.
#[must_use]
pub fn parse_file_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("gen-")?.strip_suffix(".jsonl")?;
    let generation = digits.parse().ok()?;
    (file_name(generation) == name).then_some(generation)
}

#[cfg(test)]
mod tests;
