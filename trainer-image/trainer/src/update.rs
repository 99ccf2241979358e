//! The seam between the training loop and the optimizer.

use tch::{TchError, Tensor};

use crate::parameters::Parameters;

/// Where in its course an update is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Learning rate.
    pub learning_rate: f64,
    /// The number of this update, from 1, for bias corrections: skipped steps do not count.
    pub step: u64,
}

/// What an update reads on the device, so that the host does not wait for it. Both are scalar 32-bit floats on
/// the device of the parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signals<'a> {
    /// Where it is not 0, nothing changes: neither weights and statistics nor what the update remembers, even if
    /// gradients are not finite. `None`: the update is applied.
    pub skip: Option<&'a Tensor>,
    /// What the gradients of weights are divided by, such as [`crate::clip::divisor`]. Statistics are not
    /// divided. Gradients may be divided in place. `None`: 1.
    pub divisor: Option<&'a Tensor>,
}

/// Updates weights in place. The update is local: no collective, nothing that waits.
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

    /// Everything it remembers between steps, but for their number: by name, one tensor for each parameter, in
    /// their order.
    fn state(&self) -> Vec<(&'static str, &[Tensor])>;

    /// Averages of the parameters, in their order, if it keeps any: evaluations and exports use them.
    fn averages(&self) -> Option<&[Tensor]> {
        None
    }
}
