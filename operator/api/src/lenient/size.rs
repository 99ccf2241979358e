//! Checks the size of a job before it is parsed. A job whose spec is too large keeps its small
//! fields, by which the operator manages it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::Unreadable;
use crate::few::MAX_ENTRIES;
use crate::metadata::Metadata;

/// Most bytes of a job's `spec`, as JSON. A spec of 256 variables and 64 volumes has about 40 KiB.
pub const MAX_SPEC_BYTES: usize = 256 * 1024;
/// Most values in a job's `spec`: fields and items at all depths. They determine the memory, even
/// if their text is short.
pub const MAX_SPEC_VALUES: usize = 16_384;

/// Largest field in bytes and values that is kept from a spec that is too large.
const MAX_FIELD_BYTES: usize = 16 * 1024;
const MAX_FIELD_VALUES: usize = 1_024;

/// A JSON object whose values have not been parsed.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// A job whose spec and status are not parsed.
#[derive(Deserialize)]
pub(super) struct Raw<'a> {
    #[serde(default)]
    pub(super) metadata: Metadata,
    #[serde(borrow, default)]
    spec: Option<&'a RawValue>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
}

impl Raw<'_> {
    /// The job without its metadata.
    ///
    /// # Errors
    /// Fails if the JSON of the job cannot be parsed.
    pub(super) fn body(&self) -> Result<Value, serde_json::Error> {
        let spec = self.spec.map(|spec| serde_json::from_str(spec.get()));
        self.with_spec(&spec.transpose()?.unwrap_or_default())
    }

    /// Cuts a job whose spec is too large: returns what is kept besides its metadata, and the
    /// message for the user. `None` if it is not too large.
    ///
    /// # Errors
    /// Fails if the JSON of the job cannot be parsed.
    pub(super) fn cut(&self) -> Result<Option<(Value, Unreadable)>, serde_json::Error> {
        let Some(spec) = self.spec else {
            return Ok(None);
        };
        let Some(too_large) = excess_of_spec(spec.get()) else {
            return Ok(None);
        };
        let body = self.with_spec(&small_fields(spec)?)?;
        Ok(Some((body, too_large)))
    }

    fn with_spec(&self, spec: &Value) -> Result<Value, serde_json::Error> {
        let status = self.status.map(|status| serde_json::from_str(status.get()));
        let status: Option<Value> = status.transpose()?;
        Ok(json!({"spec": spec, "status": status}))
    }
}

fn excess_of_spec(spec: &str) -> Option<Unreadable> {
    let num_values = num_values(spec);
    if spec.len() <= MAX_SPEC_BYTES && num_values <= MAX_SPEC_VALUES {
        return None;
    }
    Some(Unreadable {
        field: "spec".to_owned(),
        message: format!(
            "it has {} KiB of JSON and {num_values} values, and the operator manages jobs of at most {} KiB and {MAX_SPEC_VALUES} \
             values; shorten it: move scripts and data into a ConfigMap that workers.template mounts, and long lists of variables \
             into one that envFrom names",
            spec.len().div_ceil(1024),
            MAX_SPEC_BYTES / 1024
        ),
    })
}

pub(super) fn excess_of_labels(number: usize) -> Unreadable {
    Unreadable {
        field: "metadata.labels".to_owned(),
        message: format!(
            "there are {number}, and the operator manages jobs with at most {MAX_ENTRIES}; remove those that no selector uses"
        ),
    }
}

/// The small fields of the spec. The numbers of the workers are always needed.
fn small_fields(spec: &RawValue) -> Result<Value, serde_json::Error> {
    // A spec that is not an object has no fields.
    let Ok(mut fields) = serde_json::from_str::<Fields>(spec.get()) else {
        return Ok(Value::Null);
    };
    let workers = fields.remove("workers");
    let mut spec = parsed(fields, |_, value| is_small(value))?;
    if let Some(workers) = workers
        && let Ok(fields) = serde_json::from_str::<Fields>(workers.get())
    {
        spec["workers"] = parsed(fields, |_, value| is_small(value))?;
    }
    Ok(spec)
}

fn is_small(value: &RawValue) -> bool {
    let text = value.get();
    text.len() <= MAX_FIELD_BYTES && num_values(text) <= MAX_FIELD_VALUES
}

fn parsed(
    fields: Fields<'_>,
    is_kept: impl Fn(&str, &RawValue) -> bool,
) -> Result<Value, serde_json::Error> {
    let kept = fields
        .into_iter()
        .filter(|(name, value)| is_kept(name, value));
    let kept = kept.map(|(name, value)| Ok((name, serde_json::from_str(value.get())?)));
    let kept: Result<Map<String, Value>, serde_json::Error> = kept.collect();
    Ok(Value::Object(kept?))
}

/// Upper bound of the number of values in a JSON text: each value starts the text, an object or a
/// list, or follows a comma.
fn num_values(text: &str) -> usize {
    let (mut num_values, mut is_in_string, mut is_escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_in_string => is_escaped = true,
            b'"' => is_in_string = !is_in_string,
            _ if is_in_string => {}
            b'{' | b'[' | b',' => num_values += 1,
            _ => {}
        }
    }
    num_values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_at_all_depths_and_not_in_strings() {
        for (text, expected) in [
            ("1", 1),
            ("{}", 2),
            ("[{},{}]", 5),
            (r#"{"a":"[{,\"[","b":[1,2]}"#, 5),
        ] {
            assert_eq!(num_values(text), expected, "{text}");
        }
    }
}
