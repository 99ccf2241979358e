//! The seam between the training loop and the optimizer.

use tch::{TchError, Tensor};

use crate::parameters::Parameters;

/// Where in its course an update is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Learning rate.
    pub learning_rate: f64,
    /// The step, from 1, for bias corrections.
    pub step: u64,
}

/// Updates weights in place. The update is local: no collective, nothing that waits.
pub trait Update: std::fmt::Debug {
    /// Applies the gradients that the parameters hold.
    ///
    /// `skip` is a scalar 32-bit float on the device of the parameters: where it is not 0, nothing changes, neither
    /// weights nor what the update remembers, and the host need not know. `None`: the update is applied.
    ///
    /// # Errors
    /// A parameter has no gradient.
    fn apply(
        &mut self,
        parameters: &mut Parameters,
        rate: Rate,
        skip: Option<&Tensor>,
    ) -> Result<(), TchError>;

    /// Everything it remembers between steps, but for their number: by name, one tensor for each parameter, in
    /// their order.
    fn state(&self) -> Vec<(&'static str, &[Tensor])>;
}
