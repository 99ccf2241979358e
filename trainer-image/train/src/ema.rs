//! An exponential moving average of the weights, beside any optimizer.

use tch::{TchError, Tensor};

use crate::optimizers::kernels::{self, Select};
use crate::parameters::Parameters;
use crate::update::{Rate, Signals, Update};

/// An update that averages what another one leaves behind:
/// `average = decay · average + (1 - decay) · weights` after every step (Polyak and Juditsky, 1992). Running
/// statistics are averaged as weights are, so that the averaged model has statistics that fit its weights.
#[derive(Debug)]
pub struct Ema {
    inner: Box<dyn Update>,
    decay: f64,
    averages: Vec<Tensor>,
}

impl Ema {
    /// Name of the averages in [`Update::state`].
    pub const STATE: &str = "ema";

    /// An average that begins with the present parameters.
    ///
    /// # Errors
    /// The averages exceed the memory.
    pub fn new(
        inner: Box<dyn Update>,
        decay: f64,
        parameters: &Parameters,
    ) -> Result<Self, TchError> {
        let copy = |tensor: &Tensor| {
            let detached = tensor.f_detach()?;
            let mut copy = detached.f_empty_like()?;
            copy.f_copy_(&detached)?;
            Ok(copy)
        };
        Ok(Self {
            inner,
            decay,
            averages: parameters
                .tensors()
                .iter()
                .map(copy)
                .collect::<Result<_, TchError>>()?,
        })
    }

    /// The averages, in the order of the parameters.
    pub fn averages(&self) -> &[Tensor] {
        &self.averages
    }
}

impl Update for Ema {
    fn apply(
        &mut self,
        parameters: &mut Parameters,
        rate: Rate,
        signals: Signals<'_>,
    ) -> Result<(), TchError> {
        self.inner.apply(parameters, rate, signals)?;
        let select = Select::new(signals.skip)?;
        tch::no_grad(|| {
            kernels::average(
                &self.averages,
                parameters.tensors(),
                1.0 - self.decay,
                &select,
            )
        })
    }

    fn state(&self) -> Vec<(&'static str, &[Tensor])> {
        let mut state = self.inner.state();
        state.push((Self::STATE, &self.averages));
        state
    }
}
