//! The samples of each step, with the same numbers as in the built-in trainer.

use pyo3::prelude::*;
use roundhouse_elastic::ledger::LedgerIdentity;
use roundhouse_elastic::{DataSchedule, Length, Scaling, shard};

/// The samples of each step of a training.
///
/// `num_samples` and `global_batch_size` are at least 1. The length is `steps`, or `epochs` without
/// `steps`. `seed` determines the order of the samples.
#[pyclass(frozen, module = "roundhouse._native")]
#[derive(Debug)]
pub(crate) struct SampleSchedule {
    pub(crate) data_schedule: DataSchedule,
    pub(crate) identity: LedgerIdentity,
    pub(crate) scaling: Scaling,
}

#[pymethods]
impl SampleSchedule {
    #[new]
    #[pyo3(signature = (num_samples, global_batch_size, *, steps = None, epochs = None, seed = 0))]
    fn new(
        num_samples: u64,
        global_batch_size: u64,
        steps: Option<u64>,
        epochs: Option<u64>,
        seed: u64,
    ) -> Self {
        let length = steps.map_or_else(|| Length::Epochs(epochs.unwrap_or(1)), Length::Steps);
        let data_schedule = DataSchedule::new(num_samples, global_batch_size, length, None);
        Self {
            identity: LedgerIdentity::of(&data_schedule, seed),
            scaling: Scaling::new(None, &data_schedule),
            data_schedule,
        }
    }

    /// Number of steps of the whole training.
    #[getter]
    fn total_steps(&self) -> u64 {
        self.data_schedule.total_steps()
    }

    /// The step after `steps` committed steps that have used `samples`: (epoch, first place, place
    /// after the last one, whether it ends the epoch), or None when training is complete. Places
    /// are in the order of the epoch.
    fn batch(&self, steps: u64, samples: u64) -> Option<(u64, u64, u64, bool)> {
        let position = roundhouse_elastic::TrainingPosition {
            step: steps,
            samples,
            ..self.scaling.start()
        };
        let batch = self.data_schedule.batch_at(&position)?;
        Some((
            batch.epoch,
            batch.places.start,
            batch.places.end,
            batch.ends_epoch,
        ))
    }

    /// The share of a rank of the places `start..end`.
    #[staticmethod]
    fn part(start: u64, end: u64, rank: u32, world_size: u32) -> (u64, u64) {
        let part = shard::shard(&(start..end), rank, world_size);
        (part.start, part.end)
    }

    /// The samples at the places `start..end` in the order of an epoch.
    fn samples(&self, epoch: u64, start: u64, end: u64) -> Vec<u64> {
        let order = self.identity.order(epoch);
        (start..end).map_while(|place| order.at(place)).collect()
    }
}
