//! The ranks of one generation, and what they tell each other.
//!
//! A world of one has no process group and no socket; everything else is the same for it.

use std::time::Duration;

use roundhouse_c10d::{Backend, GroupOptions, ProcessGroup, ReduceOp, Store};
use roundhouse_elastic::{Agreement, Place, StateSource};
use tch::Tensor;

use crate::failure::Failure;

/// This process among its peers.
#[derive(Debug)]
pub struct World {
    rank: u32,
    size: u32,
    group: Option<ProcessGroup>,
}

/// What a step's end tells all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepEnd {
    /// Sum over all samples of the step.
    pub loss_sum: f64,
    /// See [`Agreement`].
    pub agreement: Agreement,
}

impl World {
    /// A world of one.
    #[must_use]
    pub const fn alone() -> Self {
        Self {
            rank: 0,
            size: 1,
            group: None,
        }
    }

    /// Builds the process group of a generation in its part of the store; returns when all its
    /// ranks have come.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when one did not come before the timeout.
    pub fn form(
        place: &Place,
        store: &Store,
        own_address: std::net::IpAddr,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let options = GroupOptions {
            backend: Backend::Gloo,
            timeout,
            address: own_address,
            name: format!("gen{}", place.generation),
        };
        let group = ProcessGroup::new(store, place.rank, place.world_size, &options)?;
        Ok(Self {
            rank: place.rank,
            size: place.world_size,
            group: Some(group),
        })
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

    /// The process group; `None` in a world of one.
    #[must_use]
    pub const fn group(&self) -> Option<&ProcessGroup> {
        self.group.as_ref()
    }

    /// Sums over all ranks, element by element.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn sum(&self, values: &[f64]) -> Result<Vec<f64>, Failure> {
        let Some(group) = &self.group else {
            return Ok(values.to_vec());
        };
        let mut tensor = Tensor::f_from_slice(values)?;
        group.all_reduce(&mut tensor, ReduceOp::Sum)?;
        let mut sums = vec![0.0; values.len()];
        tensor.f_copy_data(&mut sums, values.len())?;
        Ok(sums)
    }

    /// The small collective at the end of each step: the loss of all samples, whether all is
    /// finite, and the newest generation that everybody has seen. One sum does all three, for
    /// each rank writes its generation into a slot of its own.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn end_step(
        &self,
        local_loss_sum: f64,
        finite: bool,
        newest_seen: u64,
    ) -> Result<StepEnd, Failure> {
        let mut values = vec![0.0; 2 + self.size as usize];
        values[0] = if finite { local_loss_sum } else { 0.0 };
        values[1] = f64::from(u8::from(!finite));
        values[2 + self.rank as usize] = newest_seen as f64;
        let sums = self.sum(&values)?;
        let newest: Vec<u64> = sums[2..].iter().map(|value| whole(*value)).collect();
        Ok(StepEnd {
            loss_sum: sums[0],
            agreement: Agreement::of(&newest, whole(sums[1])),
        })
    }

    /// Who has the state to go on with, given how many steps each rank has committed.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn agree_on_state(&self, committed_steps: u64) -> Result<StateSource, Failure> {
        let mut values = vec![0.0; self.size as usize];
        values[self.rank as usize] = committed_steps as f64;
        let steps: Vec<u64> = self.sum(&values)?.into_iter().map(whole).collect();
        Ok(StateSource::of(&steps))
    }

    /// Overwrites the tensors of all ranks with those of one.
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
mod tests {
    use super::*;

    #[test]
    fn a_world_of_one_agrees_with_itself() {
        let world = World::alone();
        let end = world.end_step(2.5, true, 7).unwrap();
        assert!((end.loss_sum - 2.5).abs() < f64::EPSILON);
        assert_eq!(end.agreement.newest_generation, 7);
        assert!(end.agreement.all_finite);
        assert!(
            !world
                .end_step(f64::NAN, false, 7)
                .unwrap()
                .agreement
                .all_finite
        );
        assert_eq!(world.agree_on_state(3).unwrap().step, 3);
    }
}
