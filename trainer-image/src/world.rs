//! The ranks of one generation, and what they tell each other.
//!
//! A world of one has no process group and no socket; everything else is the same for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use roundhouse_c10d::{ProcessGroup, ReduceOp};
use roundhouse_elastic::Agreement;
use tch::{Device, Tensor};

use crate::failure::Failure;

pub mod forming;
pub mod saving;
pub mod state;
mod witness;

pub use saving::{Saving, SavingSum};
pub use state::{Agreed, Own};

/// This process among its peers.
#[derive(Debug)]
pub struct World {
    rank: u32,
    size: u32,
    device: Device,
    group: Option<Arc<ProcessGroup>>,
    num_sums: AtomicU64,
}

/// What one rank brings to a step's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether its loss and gradients are finite.
    pub finite: bool,
    /// Whether it was asked to leave.
    pub leaving: bool,
    /// The newest generation it has seen.
    pub newest_seen: u64,
    /// What it has to say about checkpoints and ledger.
    pub saving: Saving,
    /// What its step before took without its peers; zero if there was none in this generation.
    pub own_time: Duration,
}

/// What a step's end tells all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct StepEnd {
    /// Sum over all samples of the step.
    pub loss_sum: f64,
    /// See [`Agreement`].
    pub agreement: Agreement,
    /// See [`SavingSum`].
    pub saving: SavingSum,
    /// [`Standing::own_time`] of each rank.
    pub own_seconds: Vec<f64>,
}

impl World {
    /// A world of one.
    #[must_use]
    pub const fn alone() -> Self {
        Self {
            rank: 0,
            size: 1,
            device: Device::Cpu,
            group: None,
            num_sums: AtomicU64::new(0),
        }
    }

    /// Rank of this process.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Where the tensors of its collectives have to be.
    #[must_use]
    pub const fn device(&self) -> Device {
        self.device
    }

    /// The process group; `None` in a world of one.
    #[must_use]
    pub fn group(&self) -> Option<&ProcessGroup> {
        self.group.as_deref()
    }

    /// A handle of the process group for whoever may have to end a wait for it.
    #[must_use]
    pub fn shared_group(&self) -> Option<Arc<ProcessGroup>> {
        self.group.clone()
    }

    /// Sums numbers from 0 to 2^53 over all ranks, element by element. What it returns every rank has given.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn sum(&self, values: &[f64]) -> Result<Vec<f64>, Failure> {
        let Some(group) = &self.group else {
            return Ok(values.to_vec());
        };
        let turn = self.num_sums.fetch_add(1, Ordering::Relaxed);
        let values = witness::add(values, turn);
        let mut tensor = Tensor::f_from_slice(&values)?.f_to_device(self.device)?;
        group.all_reduce(&mut tensor, ReduceOp::Sum)?;
        // This copy waits for the device, and returns garbage if the group is aborted meanwhile.
        let read = tensor
            .f_to_device(Device::Cpu)
            .and_then(Vec::<f64>::try_from);
        group.check()?;
        let sums = read?;
        witness::hear(&sums, turn, self.size).ok_or_else(|| {
            Failure::PeerLost("a sum that nobody has given: a peer aborts the group".to_owned())
        })
    }

    /// The small collective at the end of each step: the loss of all samples, and what the ranks
    /// agree on. One sum does it all, for each rank has slots of its own for its generation and its time.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn end_step(&self, local_loss_sum: f64, own: &Standing) -> Result<StepEnd, Failure> {
        const HEAD: usize = 3 + Saving::NUM_NUMBERS;
        let num_ranks = self.size as usize;
        let times = HEAD + num_ranks;
        let mut values = vec![0.0; times + num_ranks];
        values[0] = if own.finite { local_loss_sum } else { 0.0 };
        values[1] = f64::from(u8::from(!own.finite));
        values[2] = f64::from(u8::from(own.leaving));
        values[3..HEAD].copy_from_slice(&own.saving.to_numbers(self.rank));
        values[HEAD + self.rank as usize] = own.newest_seen as f64;
        values[times + self.rank as usize] = own.own_time.as_secs_f64();
        let sums = self.sum(&values)?;
        let newest: Vec<u64> = sums[HEAD..times]
            .iter()
            .map(|value| whole(*value))
            .collect();
        Ok(StepEnd {
            loss_sum: sums[0],
            agreement: Agreement::of(&newest, whole(sums[1]), whole(sums[2])),
            saving: SavingSum::of(&sums[3..HEAD]),
            own_seconds: sums[times..].to_vec(),
        })
    }

    /// What the ranks agree on where no step ends.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn agree(&self, newest_seen: u64, leaving: bool) -> Result<Agreement, Failure> {
        let mut values = vec![0.0; 1 + self.size as usize];
        values[0] = f64::from(u8::from(leaving));
        values[1 + self.rank as usize] = newest_seen as f64;
        let sums: Vec<u64> = self.sum(&values)?.into_iter().map(whole).collect();
        Ok(Agreement::of(&sums[1..], 0, sums[0]))
    }

    /// How far all are with saving, between steps.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn sum_saving(&self, own: &Saving) -> Result<SavingSum, Failure> {
        Ok(SavingSum::of(&self.sum(&own.to_numbers(self.rank))?))
    }

    /// Waits until all ranks are here. A sum: a barrier of NCCL makes only the device wait.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn barrier(&self) -> Result<(), Failure> {
        self.sum(&[0.0]).map(|_| ())
    }

    /// Ends a world that broke: whoever still waits in one of its collectives hears of it at once. If it is
    /// being aborted already, that is waited for, so that the next group does not begin within it.
    pub fn abandon(self) {
        let Some(group) = self.group else { return };
        // A connection that is gone already needs no cutting.
        let _ = group.abort();
        let_go(group);
    }

    /// Fails once the group was aborted: what its collectives have left is garbage then.
    ///
    /// # Errors
    /// [`Failure::PeerLost`].
    pub fn check(&self) -> Result<(), Failure> {
        Ok(self.group.as_ref().map_or(Ok(()), |group| group.check())?)
    }

    /// What an error of the Reducer means. Garbage makes its own checks fail ("DDP expects same model across
    /// all ranks"), so over a library that does not tell its failures every error may be a peer's.
    #[must_use]
    pub fn explain(&self, error: roundhouse_c10d::Error) -> Failure {
        match &self.group {
            Some(group) if group.check().is_err() || !group.backend().tells_failures() => {
                Failure::PeerLost(error.to_string())
            }
            _ => error.into(),
        }
    }

    /// Overwrites the tensors of all ranks with those of one. That they came whole is for the caller to find out.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn broadcast(&self, tensors: &mut [Tensor], source: u32) -> Result<(), Failure> {
        if let Some(group) = &self.group {
            group.broadcast_coalesced(tensors, source)?;
        }
        Ok(())
    }
}

/// Drops a group. Its destructor waits for the library's threads, and nobody should wait for it. Without a
/// thread it is dropped here.
pub(crate) fn let_go(group: Arc<ProcessGroup>) {
    let _ = std::thread::Builder::new()
        .name("abandoned".to_owned())
        .spawn(move || drop(group));
}

/// Steps and generations stay far below 2^53, so a 64-bit float carries them exactly.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sums of whole numbers from 0 to 2^53"
)]
fn whole(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

#[cfg(test)]
mod tests;
