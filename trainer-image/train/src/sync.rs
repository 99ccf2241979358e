//! How the ranks of a world turn their parts of a batch into gradients that are the same on all of them.
//!
//! The loop asks a [`Sync`] which passes this rank makes, and calls it around the backward pass of each:
//! ```text
//! for pass in sync.passes(batch):
//!     sync.before_forward()
//!     loss = task.loss(source.fetch(pass.places)) · sync.scale(batch)
//!     backward(sync.before_backward(pass, loss, numbers))
//!     sync.after_backward(pass)
//! sync.finish()
//! ```

use std::ops::Range;
use std::time::Duration;

use tch::{TchError, Tensor};

use crate::parameters::Parameters;

mod alone;
mod ddp;
mod limbs;
mod slices;

pub use alone::Alone;
pub use ddp::{Ddp, DdpOptions};
pub use slices::{Exchange, Slices};

/// One forward and backward pass over a part of a rank's samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Places in the epoch's order. They may be empty.
    pub places: Range<u64>,
    /// Which fixed part of the global batch it is, for random numbers: see [`crate::Mode::Train`].
    pub slice: u64,
    /// Whether that part ends with this pass. One that does not fit into memory is computed in several.
    pub ends_slice: bool,
    /// Whether it is this rank's last of the step.
    pub is_last: bool,
}

/// What is known when the gradients of a step are complete.
#[derive(Debug, Default)]
pub struct Finished {
    /// The numbers of all ranks, in the order of the ranks, if they have travelled with the gradients.
    pub numbers: Option<Vec<Vec<f64>>>,
    /// The sum of the losses of the global batch, if it has travelled with the gradients.
    pub loss_sum: Option<f64>,
    /// For how long this rank only waited for its peers.
    pub waited: Duration,
}

/// Why gradients could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// A collective failed.
    #[error(transparent)]
    Group(#[from] roundhouse_c10d::Error),
    /// libtorch refused an operation.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
}

/// From parts of a batch to synchronized gradients.
pub trait Sync: std::fmt::Debug {
    /// The passes of this rank over a batch of these places: at least one, since a rank without samples takes
    /// part in the collectives, too.
    fn passes(&self, batch: &Range<u64>) -> Vec<Pass>;

    /// What the loss of a pass is multiplied by before its backward pass, so that the gradients are those of the
    /// mean over all samples of the batch.
    fn scale(&self, num_samples: u64) -> f64;

    /// Before each forward pass.
    ///
    /// # Errors
    /// A peer is gone.
    fn before_forward(&mut self) -> Result<(), SyncError>;

    /// Before each backward pass; returns what that pass begins with. `numbers` are what this rank has to tell the
    /// others at the end of the step. They count in the last pass alone, and their number is always the same.
    ///
    /// # Errors
    /// A peer is gone.
    fn before_backward(
        &mut self,
        pass: &Pass,
        scaled_loss: Tensor,
        numbers: &[f64],
    ) -> Result<Tensor, SyncError>;

    /// After each backward pass.
    ///
    /// # Errors
    /// A peer is gone.
    fn after_backward(
        &mut self,
        pass: &Pass,
        loss_sum: &Tensor,
        parameters: &mut Parameters,
    ) -> Result<(), SyncError>;

    /// After the last pass: the parameters hold the mean gradients of the batch, the same on all ranks.
    ///
    /// # Errors
    /// A peer is gone.
    fn finish(&mut self, parameters: &mut Parameters) -> Result<Finished, SyncError>;
}
