//! The moments of Adam, in the steps of `AdamW` and LAMB.

use roundhouse_c10d::{AdamWUpdate, Gate, Moments, foreach};
use tch::{TchError, Tensor};

use super::{Select, average, copies, divided, handles, scalar};
use crate::optimizers::groups::Members;

/// The numbers of one step on one group.
#[derive(Clone, Copy, Debug)]
pub(in crate::optimizers) struct AdamStep {
    pub(in crate::optimizers) rate: f64,
    pub(in crate::optimizers) beta1: f64,
    pub(in crate::optimizers) beta2: f64,
    pub(in crate::optimizers) epsilon: f64,
    pub(in crate::optimizers) weight_decay: f64,
    /// Number of the update, from 1.
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
        gradients: &[Tensor],
        [firsts, seconds]: [&[Tensor]; 2],
        select: &Select,
    ) -> Result<(), TchError> {
        let mut squares = copies(gradients)?;
        foreach::mul_(&mut squares, gradients)?;
        average(firsts, gradients, 1.0 - self.beta1, select)?;
        average(seconds, &squares, 1.0 - self.beta2, select)
    }

    /// `m̂ / (√v̂ + ε)`, computed as `m · √(1-β₂ᵗ)/(1-β₁ᵗ) / (√v + ε·√(1-β₂ᵗ))`.
    fn directions(&self, [firsts, seconds]: [&[Tensor]; 2]) -> Result<Vec<Tensor>, TchError> {
        let (first_correction, root) = self.corrections();
        let mut denominators = copies(seconds)?;
        foreach::sqrt_(&mut denominators)?;
        foreach::add_scalar_(&mut denominators, self.epsilon * root)?;
        let mut directions = copies(firsts)?;
        foreach::mul_scalar_(&mut directions, root / first_correction)?;
        foreach::div_(&mut directions, &denominators)?;
        Ok(directions)
    }
}

/// `w = w·(1 - rate·decay) - rate · m̂ / (√v̂ + ε)`: one kernel for all tensors. A divisor divides
/// the gradients in place.
pub(in crate::optimizers) fn adamw(
    Members { weights, gradients }: &Members,
    [firsts, seconds]: [&[Tensor]; 2],
    step: &AdamStep,
    divisor: Option<&Tensor>,
    select: &Select,
) -> Result<(), TchError> {
    let Some(first) = weights.first() else {
        return Ok(());
    };
    let update = AdamWUpdate {
        lr: step.rate,
        beta1: step.beta1,
        beta2: step.beta2,
        eps: step.epsilon,
        weight_decay: step.weight_decay,
    };
    let (mut means, mut squares) = (handles(firsts), handles(seconds));
    let mut moments = Moments {
        means: &mut means,
        squares: &mut squares,
        // The kernel increments the step.
        step: &mut scalar((step.step - 1) as f64, first)?,
    };
    let found_inf = select.found_inf()?;
    let gate = Gate {
        grad_scale: divisor,
        found_inf: found_inf.as_ref(),
    };
    Ok(update.apply(&mut handles(weights), gradients, &mut moments, gate)?)
}

/// Updates the moments and returns `m̂ / (√v̂ + ε) + decay·w` for each tensor.
pub(in crate::optimizers) fn lamb_directions(
    Members { weights, gradients }: &Members,
    [firsts, seconds]: [&[Tensor]; 2],
    step: &AdamStep,
    divisor: Option<&Tensor>,
    select: &Select,
) -> Result<Vec<Tensor>, TchError> {
    let gradients = divided(gradients, divisor)?;
    step.update_moments(&gradients, [firsts, seconds], select)?;
    let mut directions = step.directions([firsts, seconds])?;
    if step.weight_decay > 0.0 {
        foreach::add_(&mut directions, weights, step.weight_decay)?;
    }
    Ok(directions)
}
