//! Growth of the batch at given epochs (Smith et al., 2018).
//!
//! The batch grows only at the start of an epoch, so every epoch is divided into equal batches and
//! one smaller batch at its end, and each sample is still used once. The stages hold integers, so
//! that the ledger can hash them and all ranks agree on them exactly.

use roundhouse_contract::trainer::optimizer::BatchGrowth;
use serde::{Deserialize, Serialize};

/// Maximum number of stages; the configuration allows no more.
const MAX_STAGES: usize = BatchGrowth::MAX_STAGES;

/// A batch size that applies from one epoch on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// First epoch of the stage, from 0.
    pub from_epoch: u64,
    /// Samples per step, over all ranks.
    pub global_batch: u64,
}

/// The stages after the first one, in the order of their epochs. If empty, the batch is constant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Stage>", into = "Vec<Stage>")]
pub struct Growth {
    stages: [Stage; MAX_STAGES],
    num_stages: usize,
}

/// The list does not describe stages in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotStages;

impl std::fmt::Display for NotStages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "growth must be at most {MAX_STAGES} stages with ascending epochs from 1 and batches of at least 1"
        )
    }
}

impl TryFrom<Vec<Stage>> for Growth {
    type Error = NotStages;

    fn try_from(stages: Vec<Stage>) -> Result<Self, NotStages> {
        let ascends = stages.is_sorted_by(|left, right| left.from_epoch < right.from_epoch);
        let are_whole = stages
            .iter()
            .all(|stage| stage.from_epoch > 0 && stage.global_batch > 0);
        let mut growth = Self {
            num_stages: stages.len(),
            ..Self::default()
        };
        let places = growth.stages.get_mut(..stages.len()).ok_or(NotStages)?;
        places.copy_from_slice(&stages);
        (ascends && are_whole).then_some(growth).ok_or(NotStages)
    }
}

impl From<Growth> for Vec<Stage> {
    fn from(growth: Growth) -> Self {
        growth.stages().to_vec()
    }
}

impl Growth {
    /// Computes the stages of a configuration. Stage k has `first_batch · factor^k` samples,
    /// rounded, and at least `first_batch` and at most `num_samples`. An epoch that is not above
    /// the one before it is ignored.
    #[must_use]
    pub fn new(settings: &BatchGrowth, first_batch: u64, num_samples: u64) -> Self {
        let mut growth = Self::default();
        let mut batch = first_batch as f64;
        for epoch in settings.at_epochs.iter().map(|epoch| u64::from(*epoch)) {
            let last = growth.stages().last().map_or(0, |stage| stage.from_epoch);
            if epoch <= last || growth.num_stages == MAX_STAGES {
                continue;
            }
            batch *= settings.factor;
            growth.stages[growth.num_stages] = Stage {
                from_epoch: epoch,
                global_batch: rounded(batch).clamp(first_batch, num_samples.max(first_batch)),
            };
            growth.num_stages += 1;
        }
        growth
    }

    /// Returns the stages after the first one.
    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        &self.stages[..self.num_stages.min(MAX_STAGES)]
    }

    /// Whether the batch is constant.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.num_stages == 0
    }

    /// Samples per step in an epoch of a training whose first batch is `first_batch`.
    #[must_use]
    pub fn batch(&self, first_batch: u64, epoch: u64) -> u64 {
        let begun = self.stages().iter().rev();
        begun
            .into_iter()
            .find(|stage| stage.from_epoch <= epoch)
            .map_or(first_batch, |stage| stage.global_batch)
    }

    /// Scales the batch `own` of the present workers by the growth of the job's batch from
    /// `first_batch` until this epoch, rounded.
    #[must_use]
    pub fn scaled(&self, own: u64, first_batch: u64, epoch: u64) -> u64 {
        let first = u128::from(first_batch.max(1));
        let now = u128::from(self.batch(first_batch, epoch));
        u64::try_from((u128::from(own) * now + first / 2) / first).unwrap_or(u64::MAX)
    }
}

/// Rounds a batch to an integer. Floats of this size are exact, and the caller clamps large values.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a conversion of a float saturates"
)]
fn rounded(batch: f64) -> u64 {
    batch.round() as u64
}

#[cfg(test)]
mod tests;
