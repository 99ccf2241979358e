//! The interface between the training loop and the optimizer.

use tch::{TchError, Tensor};

use crate::parameters::Parameters;

/// The learning rate and the number of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Learning rate of this update.
    pub learning_rate: f64,
    /// Number of this update, from 1, for bias corrections. Skipped steps do not count.
    pub step: u64,
}

/// Inputs that an update reads on the device, so the host does not wait for them. Both are scalar
/// 32-bit floats on the device of the parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signals<'a> {
    /// If it is not 0, nothing changes: neither weights and statistics nor the update's state, even
    /// if gradients are not finite. `None`: the update is applied.
    pub skip: Option<&'a Tensor>,
    /// The divisor of the weights' gradients, such as [`crate::clip::divisor`]. Statistics are not
    /// divided. The update may divide gradients in place. `None`: 1.
    pub divisor: Option<&'a Tensor>,
}

/// Updates weights in place. The update is local: it runs no collective and does not wait.
pub trait Update: std::fmt::Debug {
    /// Applies the gradients that the parameters hold.
    ///
    /// # Errors
    /// A parameter has no gradient.
    fn apply(
        &mut self,
        parameters: &mut Parameters,
        rate: Rate,
        signals: Signals<'_>,
    ) -> Result<(), TchError>;

    /// The state between steps, except their number: by name, one tensor for each parameter, in the
    /// order of the parameters.
    fn state(&self) -> Vec<(&'static str, &[Tensor])>;

    /// Averages of the parameters, in their order, if the update keeps them. Evaluations and
    /// exports use them.
    fn averages(&self) -> Option<&[Tensor]> {
        None
    }
}
