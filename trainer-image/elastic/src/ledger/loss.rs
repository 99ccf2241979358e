//! The loss in a ledger line. JSON has no numbers that are not finite, and NaN has many bit
//! patterns, which depend on the machine and on the order of sums. So every loss that is not finite
//! becomes one NaN, whose JSON text is `null`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bits of the canonical NaN.
const NOT_FINITE: u64 = 0x7ff8_0000_0000_0000;

/// Returns the loss itself, or the canonical NaN if it is not finite.
pub(super) const fn canonical(loss: f64) -> f64 {
    if loss.is_finite() {
        loss
    } else {
        f64::from_bits(NOT_FINITE)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(super) fn serialize<S: Serializer>(loss: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    loss.is_finite().then_some(loss).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let loss = Option::<f64>::deserialize(deserializer)?;
    Ok(canonical(loss.unwrap_or(f64::NAN)))
}
