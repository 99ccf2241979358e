//! The ranks of a generation, for models whose passes need sums over all ranks.

use std::sync::Arc;

use tch::{TchError, Tensor};

use crate::group::C10dGroup;

/// The ranks that compute the same step, each on its own part of the batch.
#[derive(Clone, Debug)]
pub struct Ranks(Arc<C10dGroup>);

impl Ranks {
    /// The ranks of a process group.
    #[must_use]
    pub const fn of(group: Arc<C10dGroup>) -> Self {
        Self(group)
    }

    /// The sum of `own` over the ranks; gradients flow through it. It runs a collective in the
    /// forward pass and another one in the backward pass, so all ranks must build the same graph:
    /// see [`roundhouse_c10d::ProcessGroup::sum`].
    ///
    /// # Errors
    /// A peer is lost. The step is lost, and any error of the pass afterwards counts as a lost
    /// peer.
    pub fn sum(&self, own: &Tensor) -> Result<Tensor, TchError> {
        self.0.sum_in_pass(own)
    }
}
