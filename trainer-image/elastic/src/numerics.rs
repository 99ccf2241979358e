//! Rules for steps whose loss or gradient is not finite, and for the loss scale of 16-bit floats.
//! They depend only on values that all ranks have agreed on, so all ranks come to the same result.

use roundhouse_contract::trainer::{LossScaling, OnNonFinite};
use serde::{Deserialize, Serialize};

/// Steps that were committed without an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Skips {
    /// Number of them since the first step of the training.
    pub total: u64,
    /// Number of them right before the next step; 0 if the last step was updated.
    pub in_a_row: u64,
}

impl Skips {
    /// No step was skipped.
    pub const NONE: Self = Self {
        total: 0,
        in_a_row: 0,
    };

    /// Whether no step was skipped.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Returns the counts after another step.
    #[must_use]
    pub const fn after(self, is_skipped: bool) -> Self {
        if is_skipped {
            Self {
                total: self.total + 1,
                in_a_row: self.in_a_row + 1,
            }
        } else {
            Self {
                in_a_row: 0,
                ..self
            }
        }
    }
}

/// Factor of the loss before the backward pass, which keeps small fp16 gradients from becoming 0.
/// The rule is that of `torch.amp.GradScaler`. The factor changes by powers of two. So with one
/// process, or with slices, an initial scale that is a power of two changes only the exponents of
/// gradients, and nothing is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LossScale {
    /// The factor; `scale` in `GradScaler`.
    pub scale: f64,
    /// Steps without overflow since the factor last changed; the growth tracker of `GradScaler`.
    pub clean_steps: u64,
}

impl LossScale {
    /// Multiplies the scale after `growth_interval` clean steps.
    pub const GROWTH: f64 = 2.0;
    /// Multiplies the scale after a step that overflowed.
    pub const BACKOFF: f64 = 0.5;

    /// Returns the scale before the first step.
    #[must_use]
    pub const fn start(settings: &LossScaling) -> Self {
        Self {
            scale: settings.initial,
            clean_steps: 0,
        }
    }

    /// Returns the scale after another step. It does not grow beyond the largest 32-bit float.
    #[must_use]
    pub fn after(self, has_overflowed: bool, settings: &LossScaling) -> Self {
        if has_overflowed {
            return Self {
                scale: self.scale * Self::BACKOFF,
                clean_steps: 0,
            };
        }
        let clean_steps = self.clean_steps + 1;
        if clean_steps < u64::from(settings.growth_interval) {
            return Self {
                clean_steps,
                ..self
            };
        }
        let grown = self.scale * Self::GROWTH;
        Self {
            scale: if grown <= f64::from(f32::MAX) {
                grown
            } else {
                self.scale
            },
            clean_steps: 0,
        }
    }
}

/// Agreement of the ranks on whether the numbers of a step are finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finite {
    /// Whether the loss of the global batch is finite.
    pub loss: bool,
    /// Whether the summed gradient is finite.
    pub gradient: bool,
}

/// Decision about a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The optimizer updates the weights.
    Update,
    /// The step is committed without an update.
    Skip,
    /// Training fails at this step.
    Fail,
}

/// Rules for steps that are not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether such a step may be skipped.
    pub on_non_finite: OnNonFinite,
    /// Maximum number of consecutive skipped steps. The next step that is not
    /// finite fails the training.
    pub max_in_a_row: u64,
    /// Whether the loss is scaled. Then a gradient overflow is expected from time to time.
    pub scales_loss: bool,
}

impl Policy {
    /// Whether any step may be skipped.
    #[must_use]
    pub const fn may_skip(&self) -> bool {
        matches!(self.on_non_finite, OnNonFinite::Skip) || self.scales_loss
    }

    /// Decides about a step that follows these skips.
    #[must_use]
    pub const fn verdict(&self, finite: Finite, skips: Skips) -> Verdict {
        if finite.loss && finite.gradient {
            return Verdict::Update;
        }
        let may_skip = match self.on_non_finite {
            OnNonFinite::Skip => true,
            OnNonFinite::Fail => self.scales_loss && finite.loss,
        };
        if may_skip && skips.in_a_row < self.max_in_a_row {
            Verdict::Skip
        } else {
            Verdict::Fail
        }
    }
}

#[cfg(test)]
mod tests;
