//! Moments: the steps of `AdamW` and LAMB.

use tch::{TchError, Tensor};

use super::{Select, divided};
use crate::optimizers::groups::Members;

/// One step on one group.
#[derive(Clone, Copy, Debug)]
pub(in crate::optimizers) struct AdamStep {
    pub(in crate::optimizers) rate: f64,
    pub(in crate::optimizers) beta1: f64,
    pub(in crate::optimizers) beta2: f64,
    pub(in crate::optimizers) epsilon: f64,
    pub(in crate::optimizers) weight_decay: f64,
    /// From 1.
    pub(in crate::optimizers) step: u64,
}

impl AdamStep {
    /// `1 - β₁ᵗ` and `√(1 - β₂ᵗ)`.
    fn corrections(&self) -> (f64, f64) {
        let exponent = self.step as f64;
        (
            1.0 - self.beta1.powf(exponent),
            (1.0 - self.beta2.powf(exponent)).sqrt(),
        )
    }

    /// `m = β₁·m + (1-β₁)·g; v = β₂·v + (1-β₂)·g²`.
    fn update_moments(
        &self,
        gradient: &Tensor,
        first: &Tensor,
        second: &Tensor,
        select: &Select,
    ) -> Result<(), TchError> {
        let square = gradient.f_mul(gradient)?;
        select.write(first, |first| first.f_lerp_(gradient, 1.0 - self.beta1))?;
        select.write(second, |second| second.f_lerp_(&square, 1.0 - self.beta2))
    }

    /// `√v + ε·√(1-β₂ᵗ)`: the denominator of the corrected moments, times `√(1-β₂ᵗ)`.
    fn denominator(&self, second: &Tensor) -> Result<Tensor, TchError> {
        let (_, root) = self.corrections();
        second.f_sqrt()?.f_add_scalar_(self.epsilon * root)
    }
}

/// `w = w·(1 - rate·decay) - rate · m̂ / (√v̂ + ε)`.
pub(in crate::optimizers) fn adamw(
    Members { weights, gradients }: &Members,
    [firsts, seconds]: [&[Tensor]; 2],
    step: &AdamStep,
    divisor: Option<&Tensor>,
    select: &Select,
) -> Result<(), TchError> {
    let (first_correction, root) = step.corrections();
    let moments = firsts.iter().zip(seconds);
    for ((weight, gradient), (first, second)) in weights.iter().zip(gradients).zip(moments) {
        let gradient = divided(gradient, divisor)?;
        step.update_moments(&gradient, first, second, select)?;
        let numerator = first.f_mul_scalar(-step.rate * root / first_correction)?;
        let denominator = step.denominator(second)?;
        select.write(weight, |weight| {
            if step.weight_decay > 0.0 {
                let _ = weight.f_mul_scalar_(1.0 - step.rate * step.weight_decay)?;
            }
            weight.f_addcdiv_(&numerator, &denominator)
        })?;
    }
    Ok(())
}

/// Updates the moments and gives `m̂ / (√v̂ + ε) + decay·w` for each tensor.
pub(in crate::optimizers) fn lamb_directions(
    Members { weights, gradients }: &Members,
    [firsts, seconds]: [&[Tensor]; 2],
    step: &AdamStep,
    divisor: Option<&Tensor>,
    select: &Select,
) -> Result<Vec<Tensor>, TchError> {
    let (first_correction, root) = step.corrections();
    let moments = firsts.iter().zip(seconds);
    let tensors = weights.iter().zip(gradients).zip(moments);
    tensors
        .map(|((weight, gradient), (first, second))| {
            let gradient = divided(gradient, divisor)?;
            step.update_moments(&gradient, first, second, select)?;
            let numerator = first.f_mul_scalar(root / first_correction)?;
            let denominator = step.denominator(second)?;
            if step.weight_decay > 0.0 {
                let decayed = weight.f_mul_scalar(step.weight_decay)?;
                decayed.f_addcdiv(&numerator, &denominator)
            } else {
                numerator.f_div(&denominator)
            }
        })
        .collect()
}
