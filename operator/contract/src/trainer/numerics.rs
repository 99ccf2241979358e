//! Number formats of a step, and the treatment of steps whose numbers are not finite.

use serde::{Deserialize, Serialize};

use super::{ConfigInvalid, invalid};

/// Number format in which a step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats in all operations.
    #[default]
    Fp32,
    /// 32-bit floats, of which the tensor cores of NVIDIA GPUs use 19 bits. On CPUs
    /// the same as `fp32`.
    Tf32,
    /// Products, convolutions and attention use bfloat16 (8 bits of precision), all other
    /// operations 32-bit floats, as with `torch.autocast`.
    Bf16,
    /// The same with 16-bit floats (11 bits of precision, at most 65,504). The loss is multiplied
    /// by a factor, so that small gradients do not become 0: see `lossScaling`. A step whose
    /// gradient overflows is skipped.
    Fp16,
}

impl Precision {
    /// Whether it is the default, `fp32`.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What happens to a step whose loss or summed gradient is not a finite number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum OnNonFinite {
    /// Training fails, and so does the job.
    #[default]
    Fail,
    /// The step is committed without an update.
    Skip,
}

impl OnNonFinite {
    /// Whether it is the default, `Fail`.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Factor of the loss with `precision: fp16`, so that small gradients do not become 0. The rule is
/// that of `torch.amp.GradScaler`: a step whose gradient overflows is skipped and halves the
/// factor, and a number of steps in a row without overflow doubles it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LossScaling {
    /// The first factor. With a power of two, scaling changes only the exponents of gradients.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1)))]
    pub initial: f64,
    /// Number of steps in a row without overflow after which the factor doubles.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000_000)))]
    pub growth_interval: u32,
}

impl LossScaling {
    /// Whether it is the default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn validate(&self) -> Result<(), ConfigInvalid> {
        if !(self.initial >= 1.0 && self.initial <= f64::from(f32::MAX)) {
            return invalid(
                "lossScaling.initial",
                "must be at least 1 and a 32-bit float",
            );
        }
        if self.growth_interval == 0 {
            return invalid("lossScaling.growthInterval", "must be at least 1");
        }
        Ok(())
    }
}

impl Default for LossScaling {
    fn default() -> Self {
        Self {
            initial: 65_536.0,
            growth_interval: 2_000,
        }
    }
}
