//! Steps whose loss or gradient is not finite, and the loss scale of 16-bit floats: pure rules over what all ranks have
//! agreed on, so that all ranks conclude the same.

use roundhouse_contract::trainer::{LossScaling, OnNonFinite};
use serde::{Deserialize, Serialize};

/// Steps that were committed without an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Skips {
    /// All of them since the training's first step.
    pub total: u64,
    /// Those right before the next step; 0 if the last step was updated.
    pub in_a_row: u64,
}

impl Skips {
    /// There was none.
    pub const NONE: Self = Self {
        total: 0,
        in_a_row: 0,
    };

    /// Whether there was none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// After another step.
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

/// What the loss is multiplied by before the backward pass, so that small gradients do not become 0 in fp16. The rule
/// is that of `torch.amp.GradScaler`. Factors are powers of two, so on one process, or with slices, a power of two as
/// the initial scale changes only the exponents of gradients, and nothing is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LossScale {
    /// The factor; `GradScaler`'s `scale`.
    pub scale: f64,
    /// Steps since it changed, none of which overflowed; `GradScaler`'s growth tracker.
    pub clean_steps: u64,
}

impl LossScale {
    /// What it is multiplied by after so many clean steps.
    pub const GROWTH: f64 = 2.0;
    /// What it is multiplied by after a step that overflowed.
    pub const BACKOFF: f64 = 0.5;

    /// Before the first step.
    #[must_use]
    pub const fn start(settings: &LossScaling) -> Self {
        Self {
            scale: settings.initial,
            clean_steps: 0,
        }
    }

    /// After another step. It does not grow past the largest 32-bit float.
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

/// What the ranks have agreed on about the numbers of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finite {
    /// The loss of the global batch is finite.
    pub loss: bool,
    /// The summed gradient is finite.
    pub gradient: bool,
}

/// What becomes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The optimizer updates the weights.
    Update,
    /// It is committed without an update.
    Skip,
    /// Training fails.
    Fail,
}

/// What becomes of a step that is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether it may be skipped.
    pub on_non_finite: OnNonFinite,
    /// Most skipped steps in a row; the next step that is not finite fails.
    pub max_in_a_row: u64,
    /// Whether the loss is scaled: then a gradient that overflows is normal.
    pub scales_loss: bool,
}

impl Policy {
    /// Whether a step may be skipped.
    #[must_use]
    pub const fn may_skip(&self) -> bool {
        matches!(self.on_non_finite, OnNonFinite::Skip) || self.scales_loss
    }

    /// What becomes of a step after these skips.
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
