//! The identity of a ledger: what the trainings of all its files have in common.

use serde::{Deserialize, Serialize};

use crate::data_schedule::{DataSchedule, Growth};
use crate::digest::Digest;
use crate::permutation::{Blocks, Permutation};
use crate::scaling::scaled;

/// Data, batch, seed and length of the training that a ledger proves. All files of the ledger have
/// the same ones, except for the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerIdentity {
    /// Number of samples of the data set.
    pub num_samples: u64,
    /// Samples per step of the first epoch, for the reference number of workers.
    pub global_batch: u64,
    /// Seed of the order of the samples in each epoch.
    pub seed: u64,
    /// Number of steps of the whole training. Only this field may change.
    pub total_steps: u64,
    /// Reference number of workers, if the batch follows the number of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_replicas: Option<u32>,
    /// Growth of the batch after the first epoch.
    #[serde(default, skip_serializing_if = "Growth::is_empty")]
    pub growth: Growth,
    /// Block sizes of the sample order, if it has two levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Blocks>,
}

impl LedgerIdentity {
    /// Returns the identity for a training whose batch does not follow the workers.
    #[must_use]
    pub const fn of(data_schedule: &DataSchedule, seed: u64) -> Self {
        Self {
            num_samples: data_schedule.num_samples(),
            global_batch: data_schedule.global_batch(),
            seed,
            total_steps: data_schedule.total_steps(),
            reference_replicas: None,
            growth: *data_schedule.growth(),
            blocks: None,
        }
    }

    /// Returns the order of the samples in an epoch.
    #[must_use]
    pub fn order(&self, epoch: u64) -> Permutation {
        match self.blocks {
            Some(blocks) => Permutation::in_blocks(self.num_samples, self.seed, epoch, blocks),
            None => Permutation::new(self.num_samples, self.seed, epoch),
        }
    }

    /// Samples per step of an epoch, for the reference number of workers.
    #[must_use]
    pub fn batch(&self, epoch: u64) -> u64 {
        self.growth.batch(self.global_batch, epoch)
    }

    /// Whether a step of `num_samples` in an epoch is possible for some number of workers.
    #[must_use]
    pub fn has_batch(&self, num_samples: u64, epoch: u64) -> bool {
        let Some(reference) = self.reference_replicas else {
            return num_samples == self.batch(epoch);
        };
        // Before the batch grew, these workers had this many samples, plus or minus one for
        // rounding.
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

    /// Returns the hash with which the first line is hashed.
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

    /// Whether a training with the identity `other` can continue this ledger.
    #[must_use]
    pub fn fit(&self, other: &Self) -> bool {
        self.genesis() == other.genesis()
    }
}
