//! Finds fields that no conversion reads. Each becomes a note, so no field is lost silently. Pure.

use serde_json::Value;

/// Fields of metadata that the API server or `kubectl` sets, or that [`super::Draft::of`] reads.
const METADATA: [&str; 14] = [
    "metadata.name",
    "metadata.generateName",
    "metadata.namespace",
    "metadata.labels",
    "metadata.annotations",
    "metadata.uid",
    "metadata.resourceVersion",
    "metadata.creationTimestamp",
    "metadata.deletionTimestamp",
    "metadata.deletionGracePeriodSeconds",
    "metadata.generation",
    "metadata.managedFields",
    "metadata.selfLink",
    "metadata.ownerReferences",
];

/// Paths of the document that `read` does not cover, in order. A path covers all fields under it.
pub(super) fn paths(document: &Value, read: &[&str]) -> Vec<String> {
    let covered: Vec<&str> = ["apiVersion", "kind", "status"]
        .iter()
        .chain(&METADATA)
        .chain(read)
        .copied()
        .collect();
    let mut found = Vec::new();
    walk(document, "", &covered, &mut found);
    found
}

fn walk(value: &Value, path: &str, covered: &[&str], found: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        if is_empty(value) || covered.contains(&path.as_str()) {
            continue;
        }
        let below = format!("{path}.");
        if value.is_object() && covered.iter().any(|known| known.starts_with(&below)) {
            walk(value, &path, covered, found);
        } else {
            found.push(path);
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn field_is_read_if_it_or_its_parent_is() {
        let document = json!({
            "kind": "X", "metadata": {"name": "a", "finalizers": ["f"]}, "status": {"x": 1},
            "spec": {"a": {"b": 1, "c": 2}, "d": [1], "e": {}, "f": null},
        });
        assert_eq!(
            paths(&document, &["spec.a.b"]),
            ["metadata.finalizers", "spec.a.c", "spec.d"]
        );
        assert_eq!(paths(&document, &["metadata", "spec"]), [""; 0]);
    }
}
