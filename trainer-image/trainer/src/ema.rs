//! An exponential moving average of the weights for any optimizer. Evaluations and exports use it.

use tch::{TchError, Tensor};

use crate::optimizers::kernels::{self, Select};
use crate::parameters::Parameters;
use crate::update::{Rate, Signals, Update};

/// An update that averages the weights after another update:
/// `average = decay · average + (1 - decay) · weights` after every step (Polyak and Juditsky,
/// 1992). Running statistics are averaged as weights are, so that the averaged model has statistics
/// that fit its weights.
#[derive(Debug)]
pub struct Ema {
    inner: Box<dyn Update>,
    decay: f64,
    averages: Vec<Tensor>,
}

impl Ema {
    /// Name of the averages in [`Update::state`].
    pub const STATE: &str = "ema";

    /// An average that starts with the current parameters.
    ///
    /// # Errors
    /// There is too little memory for the averages.
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
    fn averages(&self) -> Option<&[Tensor]> {
        Some(&self.averages)
    }
}

/// Calls `work` with a model whose weights are `averages`, if there are any. Weights and averages
/// are swapped before the call and swapped back after it, bit for bit, whatever `work` returns.
///
/// # Errors
/// A tensor cannot be copied.
pub fn in_place_of_weights<T>(
    parameters: &Parameters,
    averages: Option<&[Tensor]>,
    work: impl FnOnce() -> T,
) -> Result<T, TchError> {
    let handles =
        |tensors: &[Tensor]| -> Vec<Tensor> { tensors.iter().map(Tensor::shallow_clone).collect() };
    let mut averages = handles(averages.unwrap_or_default());
    let mut weights = handles(parameters.tensors());
    exchange(&mut weights, &mut averages)?;
    let done = work();
    exchange(&mut weights, &mut averages)?;
    Ok(done)
}

fn exchange(left: &mut [Tensor], right: &mut [Tensor]) -> Result<(), TchError> {
    tch::no_grad(|| {
        for (left, right) in left.iter_mut().zip(right) {
            let mut kept = left.f_empty_like()?;
            kept.f_copy_(left)?;
            left.f_copy_(right)?;
            right.f_copy_(&kept)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Role;

    #[test]
    fn averages_replace_the_weights_during_the_call() {
        let mut parameters = Parameters::default();
        let weights = Tensor::from_slice(&[0.1_f32, -2.5, f32::MIN_POSITIVE]);
        parameters.push("w", Role::Weight, &weights).unwrap();
        let averages = [Tensor::from_slice(&[7.0_f32, 8.0, 9.0])];
        let seen = || Vec::<f32>::try_from(parameters.tensors()[0].detach()).unwrap();
        let within = in_place_of_weights(&parameters, Some(&averages), seen).unwrap();
        assert_eq!(within, [7.0, 8.0, 9.0]);
        assert_eq!(seen(), [0.1, -2.5, f32::MIN_POSITIVE]);
        assert_eq!(averages[0], Tensor::from_slice(&[7.0_f32, 8.0, 9.0]));
        let without = in_place_of_weights(&parameters, None, seen).unwrap();
        assert_eq!(without, seen());
    }
}
