//! The ranks of a generation, as a model sees them whose passes need sums over all of them.

use std::sync::Arc;

use tch::{TchError, Tensor};

use crate::group::C10dGroup;

/// Ranks that compute the same step, each on its own part of the batch.
#[derive(Clone, Debug)]
pub struct Ranks(Arc<C10dGroup>);

impl Ranks {
    /// The ranks of a group.
    #[must_use]
    pub const fn of(group: Arc<C10dGroup>) -> Self {
        Self(group)
    }

    /// The sum of `own` over the ranks; gradients flow through it. A collective in the forward pass and another one in
    /// the backward pass: all ranks must build the same graph, see [`roundhouse_c10d::ProcessGroup::sum`].
    ///
    /// # Errors
    /// A peer is gone. The step is lost, and whatever error the pass then ends with counts as a lost peer.
    pub fn sum(&self, own: &Tensor) -> Result<Tensor, TchError> {
        self.0.sum_in_pass(own)
    }
}
