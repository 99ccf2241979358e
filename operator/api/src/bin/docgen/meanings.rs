//! Reads the meanings of enum values. The schema of the `CustomResourceDefinition` has only the
//! values; the schemas of the Rust types have the doc comment of each variant.

use roundhouse_api::{TrainingJobSpec, TrainingJobStatus};
use serde_json::{Value, json};

/// The schemas of a TrainingJob's `spec` and `status`, with the doc comments.
pub(crate) struct Meanings(Value);

impl Meanings {
    pub(crate) fn read() -> Self {
        Self(json!({
            "spec": schemars::schema_for!(TrainingJobSpec),
            "status": schemars::schema_for!(TrainingJobStatus),
        }))
    }

    /// Value and meaning of each variant of the enum at a path such as
    /// `spec.failurePolicy.rules[].action`. Empty if there is no enum, or a variant has no doc
    /// comment. The path distinguishes enums with the same values.
    pub(crate) fn of(&self, path: &str) -> Vec<(String, String)> {
        let mut parts = path.split('.');
        let root = &self.0[parts.next().unwrap_or_default()];
        let mut schema = root;
        for part in parts {
            let name = part.trim_end_matches("[]");
            schema = resolved(root, &schema["properties"][name]);
            if name != part {
                schema = resolved(root, &schema["items"]);
            }
        }
        variants(schema).unwrap_or_default()
    }
}

/// Follows references and optional fields to the schema itself.
fn resolved<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    loop {
        let name = schema["$ref"].as_str();
        let present = schema["anyOf"].as_array().into_iter().flatten();
        let mut present = present.filter(|schema| schema["type"] != "null");
        schema = match (name, present.next()) {
            (Some(name), _) => &root["$defs"][name.trim_start_matches("#/$defs/")],
            (None, Some(present)) => present,
            (None, None) => return schema,
        };
    }
}

/// Value and meaning of each variant; `None` if this is not an enum of strings or
/// a meaning is missing.
fn variants(definition: &Value) -> Option<Vec<(String, String)>> {
    let variants = definition["oneOf"].as_array()?.iter();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let variants = variants.map(|it| Some((text(&it["const"])?, text(&it["description"])?)));
    variants.collect()
}
