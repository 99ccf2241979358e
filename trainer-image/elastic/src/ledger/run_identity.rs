//! What all generations of a training have in common.

use serde::{Deserialize, Serialize};

use crate::data_schedule::{DataSchedule, Growth};
use crate::digest::Digest;
use crate::permutation::{Blocks, Permutation};
use crate::scaling::scaled;

/// What all generations of a training have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunIdentity {
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

impl RunIdentity {
    /// The run of a data_schedule whose batch does not follow the workers.
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
