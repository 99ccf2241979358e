//! The ledger: one line per committed step, each hashed together with all before it.
//!
//! A generation writes a file of its own, so that no two worlds ever write the same one: a header that
//! says which line it continues from, then its lines. Lines that come after that one in older files
//! belong to a superseded branch.

use serde::{Deserialize, Serialize};

use crate::data_schedule::Batch;
use crate::digest::Digest;

pub mod chain;
mod loss;
pub mod repeats;
mod run_identity;

pub use chain::Chain;
pub use repeats::{Beginning, Repeat, Repeats, Source, Start};
pub use run_identity::RunIdentity;

/// The end of a chain of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// Generation that committed the last line's step; 0 before the first.
    pub generation: u64,
    /// That step.
    pub step: u64,
    /// Hash of the last line, which covers all before it.
    pub hash: Digest,
}

impl Head {
    /// The head of a chain without lines.
    #[must_use]
    pub fn start(run: &RunIdentity) -> Self {
        Self {
            generation: 0,
            step: 0,
            hash: run.genesis(),
        }
    }

    /// The line of the next step.
    #[must_use]
    pub fn next(&self, batch: &Batch, generation: u64, loss: f64) -> Line {
        self.line(batch, generation, loss, false)
    }

    /// The line of the next step, if that is committed without an update.
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
    /// The generation.
    pub generation: u64,
    /// The line, of an older file, that this file's first one follows; `None`: it is the first of all.
    pub previous: Option<Head>,
    /// What is trained.
    #[serde(rename = "course")]
    pub run: RunIdentity,
    /// With what state the generation began; absent in files of earlier versions. No hash covers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
}

impl Header {
    /// The hash that the file's first line is hashed with.
    #[must_use]
    pub fn hash_before(&self) -> Digest {
        self.previous
            .map_or_else(|| self.run.genesis(), |head| head.hash)
    }
}

/// One committed step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// Number of the step, from 1.
    pub step: u64,
    /// Generation that committed it.
    pub generation: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    /// First place in the order of the epoch.
    pub start: u64,
    /// Place after the last.
    pub end: u64,
    /// Mean loss over the samples. One that is not a finite number is NaN here, and `null` in the file.
    #[serde(with = "loss")]
    pub loss: f64,
    /// Whether it was committed without an update, because its loss or gradient was not finite.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// Hash of the line before and everything above.
    pub hash: Digest,
}

impl Line {
    /// The hash that it has to have after a line with that hash.
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

    /// The chain up to it.
    #[must_use]
    pub const fn head(&self) -> Head {
        Head {
            generation: self.generation,
            step: self.step,
            hash: self.hash,
        }
    }

    /// As it stands in the file, with the newline.
    #[must_use]
    pub fn to_text(&self) -> String {
        to_text(self)
    }
}

impl Header {
    /// As it stands in the file, with the newline.
    #[must_use]
    pub fn to_text(&self) -> String {
        to_text(self)
    }
}

/// Structs of numbers always have a text.
fn to_text(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string(value).unwrap_or_default();
    text.push('\n');
    text
}

/// Name of a generation's file; sorts as the generations do.
#[must_use]
pub fn file_name(generation: u64) -> String {
    format!("gen-{generation:010}.jsonl")
}

/// The generation of a file; `None` for any other name.
#[must_use]
pub fn parse_file_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("gen-")?.strip_suffix(".jsonl")?;
    let generation = digits.parse().ok()?;
    (file_name(generation) == name).then_some(generation)
}

#[cfg(test)]
mod tests;
