//! Checks a manifest against the schema of the `CustomResourceDefinition` as the API server does:
//! bounds, lengths, enum values, and keys of lists. Pure.
//!
//! It reads the installed schema, so a bound is written once. It knows the keywords that this
//! schema has, and a unit test fails for another keyword. It does not evaluate CEL rules: the
//! planner checks the same conditions.

use std::sync::LazyLock;

use serde_json::Value;

/// A field of a manifest that the API server refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field, such as `spec.failurePolicy.rules[0].action`.
    pub field: String,
    /// What the value must be.
    pub message: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

static SPEC: LazyLock<Option<Value>> = LazyLock::new(|| {
    let crd = serde_json::to_value(crate::crd().ok()?).ok()?;
    let spec = crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    spec.cloned()
});

/// Everything that the schema refuses in the `spec` of a manifest, in the order of its fields.
/// Fields that the schema does not know are not included.
#[must_use]
pub fn violations(manifest: &Value) -> Vec<Violation> {
    let mut found = Vec::new();
    if let Some(schema) = SPEC.as_ref() {
        check("spec", schema, &manifest["spec"], &mut found);
    }
    found
}

/// Checks a value and all values below it. Null counts as missing.
fn check(field: &str, schema: &Value, value: &Value, found: &mut Vec<Violation>) {
    if value.is_null() {
        return;
    }
    if let Some(message) = refusal(schema, value) {
        let field = field.to_owned();
        found.push(Violation { field, message });
        return;
    }
    match value {
        Value::Object(fields) => {
            for name in texts(&schema["required"]) {
                if fields.get(name).is_none_or(Value::is_null) {
                    found.push(Violation {
                        field: format!("{field}.{name}"),
                        message: "is required".to_owned(),
                    });
                }
            }
            for (name, value) in fields {
                match (&schema["properties"][name], &schema["additionalProperties"]) {
                    (Value::Null, Value::Null) => {}
                    (Value::Null, any) => check(&format!("{field}[{name}]"), any, value, found),
                    (schema, _) => check(&format!("{field}.{name}"), schema, value, found),
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                let field = format!("{field}[{at}]");
                if is_repeated(schema, &items[..at], item) {
                    let message = "is in the list twice".to_owned();
                    found.push(Violation {
                        field: field.clone(),
                        message,
                    });
                }
                check(&field, &schema["items"], item, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Whether an item of a set, or the keys of an item in a keyed list, occur earlier in the list.
fn is_repeated(schema: &Value, before: &[Value], item: &Value) -> bool {
    match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => before.contains(item),
        Some("map") => {
            let keys: Vec<&str> = texts(&schema["x-kubernetes-list-map-keys"]).collect();
            let is_same = |other: &Value| keys.iter().all(|key| other[key] == item[key]);
            before.iter().any(is_same)
        }
        Some(_) | None => false,
    }
}

/// Why a value itself is refused.
fn refusal(schema: &Value, value: &Value) -> Option<String> {
    let is_of_type = match (schema["type"].as_str(), value) {
        (Some("object"), Value::Object(_))
        | (Some("array"), Value::Array(_))
        | (Some("string"), Value::String(_))
        | (Some("boolean"), Value::Bool(_))
        | (Some("number"), Value::Number(_))
        | (None, _) => true,
        (Some("integer"), Value::Number(number)) => {
            number.is_i64()
                || number.is_u64()
                || number.as_f64().is_some_and(|it| it.fract() == 0.0)
        }
        (Some(_), _) => false,
    };
    if !is_of_type {
        let wanted = schema["type"].as_str().unwrap_or_default();
        return Some(format!("must be of type {wanted}"));
    }
    let words: Vec<&str> = texts(&schema["enum"]).collect();
    if !words.is_empty() && !value.as_str().is_some_and(|text| words.contains(&text)) {
        return Some(format!("must be one of {}", words.join(", ")));
    }
    match value {
        Value::Number(number) => out_of(schema, ("minimum", "maximum"), number.as_f64()?, ""),
        Value::String(text) => {
            let length = text.chars().count() as f64;
            out_of(
                schema,
                ("minLength", "maxLength"),
                length,
                " characters long",
            )
        }
        Value::Array(items) => {
            let number = items.len() as f64;
            out_of(schema, ("minItems", "maxItems"), number, " items long")
        }
        Value::Null | Value::Bool(_) | Value::Object(_) => None,
    }
}

fn out_of(schema: &Value, (least, most): (&str, &str), value: f64, unit: &str) -> Option<String> {
    let least = schema[least].as_f64().filter(|least| value < *least);
    let most = schema[most].as_f64().filter(|most| value > *most);
    least
        .map(|least| format!("must be at least {least}{unit}"))
        .or_else(|| most.map(|most| format!("must be at most {most}{unit}")))
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

#[cfg(test)]
mod tests;
