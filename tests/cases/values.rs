//! Compares values of objects with expectations.

use serde::Deserialize;
use serde_json::Value;

use crate::case::Has;

/// The expected value at a JSON pointer.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Expected {
    /// A text that contains `contains`, or another value whose JSON contains it.
    Contains { contains: String },
    /// Exactly this value. A missing value is null.
    Is(Value),
}

impl Expected {
    fn is_met(&self, found: &Value) -> bool {
        match self {
            Self::Contains { contains } => match found.as_str() {
                Some(text) => text.contains(contains),
                None => found.to_string().contains(contains),
            },
            Self::Is(value) => found == value,
        }
    }
}

/// The values of an object that differ from the expectation, one in each line.
pub(crate) fn differences(object: &Value, has: &Has) -> Vec<String> {
    let differs = |(pointer, expected): (&String, &Expected)| {
        let found = object.pointer(pointer).unwrap_or(&Value::Null);
        (!expected.is_met(found)).then(|| format!("{pointer} is {found}, not {expected:?}"))
    };
    has.iter().filter_map(differs).collect()
}
