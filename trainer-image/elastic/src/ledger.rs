//! The ledger: one line per committed step, each hashed together with all before it.
//!
//! A generation writes a file of its own, so that no two worlds ever write the same one: a header that
//! says which line it continues from, then its lines. Lines that come after that one in older files
//! belong to a superseded branch.

use serde::{Deserialize, Serialize};

use crate::course::{Batch, Course, Growth};
use crate::digest::Digest;
use crate::permutation::{Blocks, Permutation};
use crate::scaling::scaled;

pub mod chain;
mod loss;
pub mod repeats;

pub use chain::Chain;
pub use repeats::{Beginning, Repeat, Repeats, Source, Start};

/// What all generations of a training have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terms {
    /// Samples of the data set.
    pub num_samples: u64,
    /// Samples per step of the first epoch, of the reference number of workers.
    pub global_batch: u64,
    /// Seed of the order of the samples.
    pub seed: u64,
    /// Steps of the whole training; the one thing that may change.
    pub total_steps: u64,
    /// The reference number of workers, if the batch follows their number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_replicas: Option<u32>,
    /// How the batch grows after the first epoch.
    #[serde(default, skip_serializing_if = "Growth::is_empty")]
    pub growth: Growth,
    /// The order of the samples, if it has two levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Blocks>,
}

impl Terms {
    /// The terms of a course whose batch does not follow the workers.
    #[must_use]
    pub const fn of(course: &Course, seed: u64) -> Self {
        Self {
            num_samples: course.num_samples(),
            global_batch: course.global_batch(),
            seed,
            total_steps: course.total_steps(),
            reference_replicas: None,
            growth: *course.growth(),
            blocks: None,
        }
    }

    /// The order of the samples in an epoch.
    #[must_use]
    pub fn order(&self, epoch: u64) -> Permutation {
        match self.blocks {
            Some(blocks) => Permutation::in_blocks(self.num_samples, self.seed, epoch, blocks),
            None => Permutation::new(self.num_samples, self.seed, epoch),
        }
    }

    /// Samples per step of an epoch, of the reference number of workers.
    #[must_use]
    pub fn batch(&self, epoch: u64) -> u64 {
        self.growth.batch(self.global_batch, epoch)
    }

    /// Whether some number of workers has steps of so many samples in an epoch.
    #[must_use]
    pub fn has_batch(&self, num_samples: u64, epoch: u64) -> bool {
        let Some(reference) = self.reference_replicas else {
            return num_samples == self.batch(epoch);
        };
        // Its workers had this many samples, one more or one less, before the batch grew.
        let first = u128::from(num_samples) * u128::from(self.global_batch)
            / u128::from(self.batch(epoch).max(1));
        let first = u64::try_from(first).unwrap_or(u64::MAX);
        num_samples == self.num_samples
            || (first.saturating_sub(1)..=first.saturating_add(1)).any(|own| {
                self.growth.scaled(own, self.global_batch, epoch) == num_samples
                    && self.has_first_batch(own, reference)
            })
    }

    fn has_first_batch(&self, own: u64, reference: u32) -> bool {
        let near = u128::from(own) * u128::from(reference) / u128::from(self.global_batch.max(1));
        let near = u32::try_from(near).unwrap_or(u32::MAX);
        let batch = |workers| scaled(self.global_batch, workers, reference, self.num_samples);
        (near.saturating_sub(1)..=near.saturating_add(1))
            .any(|workers| workers > 0 && batch(workers) == own)
    }

    /// What the first line is hashed with.
    #[must_use]
    pub fn genesis(&self) -> Digest {
        let mut parts: Vec<&[u8]> = vec![b"roundhouse ledger 1"];
        let numbers = [self.num_samples, self.global_batch, self.seed].map(u64::to_le_bytes);
        parts.extend(numbers.iter().map(<[_; _]>::as_slice));
        let reference = self.reference_replicas.map(u32::to_le_bytes);
        parts.extend(reference.iter().map(<[_; _]>::as_slice));
        let stages = self.growth.stages().iter();
        let stages: Vec<[[u8; 8]; 2]> = stages
            .map(|stage| [stage.from_epoch, stage.global_batch].map(u64::to_le_bytes))
            .collect();
        if !stages.is_empty() {
            parts.push(b"growth");
            parts.extend(stages.iter().flatten().map(<[_; _]>::as_slice));
        }
        let blocks = self
            .blocks
            .map(|blocks| [blocks.num_samples, blocks.num_mixed].map(u64::to_le_bytes));
        if let Some(blocks) = &blocks {
            parts.push(b"blocks");
            parts.extend(blocks.iter().map(<[_; _]>::as_slice));
        }
        Digest::of(&parts)
    }

    /// Whether a ledger can continue with these.
    #[must_use]
    pub fn fit(&self, other: &Self) -> bool {
        self.genesis() == other.genesis()
    }
}

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
    pub fn start(terms: &Terms) -> Self {
        Self {
            generation: 0,
            step: 0,
            hash: terms.genesis(),
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
    pub course: Terms,
    /// With what state the generation began; absent in files of earlier versions. No hash covers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
}

impl Header {
    /// The hash that the file's first line is hashed with.
    #[must_use]
    pub fn hash_before(&self) -> Digest {
        self.previous
            .map_or_else(|| self.course.genesis(), |head| head.hash)
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
