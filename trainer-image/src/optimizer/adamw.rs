//! Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as `torch.optim.AdamW`.

use roundhouse_contract::trainer::Optimizer as OptimizerConfig;
use tch::{TchError, Tensor};

use super::{Optimizer, zeros_like};
use crate::model::Parameters;

/// `w = w·(1 - rate·decay); m = β₁·m + (1-β₁)·g; v = β₂·v + (1-β₂)·g²;
/// w = w - rate · m̂ / (√v̂ + ε)` with the bias-corrected `m̂ = m/(1-β₁ᵗ)`, `v̂ = v/(1-β₂ᵗ)`.
#[derive(Debug)]
pub struct AdamW {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    weight_decay: f64,
    first_moments: Vec<Tensor>,
    second_moments: Vec<Tensor>,
}

impl AdamW {
    /// With empty moments.
    ///
    /// # Errors
    /// The moments exceed the memory.
    pub fn new(config: &OptimizerConfig, parameters: &Parameters) -> Result<Self, TchError> {
        Ok(Self {
            beta1: config.beta1,
            beta2: config.beta2,
            epsilon: config.epsilon,
            weight_decay: config.weight_decay,
            first_moments: zeros_like(parameters)?,
            second_moments: zeros_like(parameters)?,
        })
    }
}

impl Optimizer for AdamW {
    fn step(&mut self, parameters: &mut Parameters, rate: f64, step: u64) -> Result<(), TchError> {
        let exponent = step as f64;
        let first_correction = 1.0 - self.beta1.powf(exponent);
        let second_correction_root = (1.0 - self.beta2.powf(exponent)).sqrt();
        let moments = self.first_moments.iter_mut().zip(&mut self.second_moments);
        tch::no_grad(|| {
            for (weight, (first, second)) in parameters.tensors_mut().iter_mut().zip(moments) {
                let gradient = weight.f_grad()?;
                let _ = weight.f_mul_scalar_(1.0 - rate * self.weight_decay)?;
                let _ = first.f_lerp_(&gradient, 1.0 - self.beta1)?;
                let square = gradient.f_mul(&gradient)?.f_mul_scalar_(1.0 - self.beta2)?;
                let _ = second.f_mul_scalar_(self.beta2)?.f_add_(&square)?;
                let denominator = second
                    .f_sqrt()?
                    .f_div_scalar_(second_correction_root)?
                    .f_add_scalar_(self.epsilon)?;
                let update = first
                    .f_mul_scalar(rate / first_correction)?
                    .f_div_(&denominator)?;
                let _ = weight.f_sub_(&update)?;
            }
            Ok(())
        })
    }

    fn state(&self) -> Vec<(&'static str, &[Tensor])> {
        vec![
            ("first_moment", &self.first_moments),
            ("second_moment", &self.second_moments),
        ]
    }
}
