//! Counters that workers report. Integers in Kubernetes are signed and have 64 bits: a larger
//! number from a script would make every write of its job's status invalid.

use serde::{Deserialize, Deserializer};

/// The largest number that a status can show.
const MAX: u64 = i64::MAX.cast_unsigned();

/// Whether a number is 0, so that it need not be written.
pub(crate) fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// Reads a counter and limits it to [`i64::MAX`].
///
/// # Errors
/// Fails if the value is not a number.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    u64::deserialize(deserializer).map(|number| number.min(MAX))
}

/// Reads a counter that may be absent.
///
/// # Errors
/// Fails if the value is not a number.
pub(crate) fn read_some<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    let number = Option::<u64>::deserialize(deserializer)?;
    Ok(number.map(|number| number.min(MAX)))
}
