//! Values of objects, and what is expected of them.

use serde::Deserialize;
use serde_json::Value;

use crate::case::Has;

/// What is at a place of an object.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Expected {
    /// A text with these words; of another value its JSON.
    Contains { contains: String },
    /// This value; null, if nothing is there.
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

/// What of an object is not as expected, one place in each line.
pub(crate) fn differences(object: &Value, has: &Has) -> Vec<String> {
    let differs = |(pointer, expected): (&String, &Expected)| {
        let found = object.pointer(pointer).unwrap_or(&Value::Null);
        (!expected.is_met(found)).then(|| format!("{pointer} is {found}, not {expected:?}"))
    };
    has.iter().filter_map(differs).collect()
}
