//! The `CustomResourceDefinition` as it is installed. The derived schema lacks what Rust's types
//! cannot express: Kubernetes has only signed integers, needs a bound for every list and string,
//! and merges lists by their keys. It treats null as a missing field unless the schema allows null,
//! and this schema never does.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::TrainingJob;
use crate::fields::FIELDS;

/// Most items of a list without its own bound.
const MAX_ITEMS: u32 = 1_024;
/// Most objects of a list inside an item of another list: bounds of nested lists multiply.
const MAX_NESTED: u32 = 64;
/// Nested lists that need a larger bound.
const LONG_NESTED: [(&str, u32); 2] = [("env", 256), ("volumeMounts", 256)];
/// Longest string without its own bound: the limit of Linux for one argument or one
/// variable of a process.
const MAX_LENGTH: u32 = 131_072;

/// Lists whose items have these keys, so that two tools can own different items. They match the pod
/// template of Kubernetes, where the keys of all items are required.
const MAPS: [(&str, &[&str]); 12] = [
    ("avoidNodes", &["node"]),
    ("blocked", &["reason"]),
    ("claims", &["name"]),
    ("containers", &["name"]),
    ("env", &["name"]),
    ("hostAliases", &["ip"]),
    ("initContainers", &["name"]),
    ("resourceClaims", &["name"]),
    ("schedulingGates", &["name"]),
    ("volumeDevices", &["devicePath"]),
    ("volumeMounts", &["mountPath"]),
    ("volumes", &["name"]),
];

/// The definition of the TrainingJob.
///
/// # Errors
/// The function never fails for the types of this crate; serde's signature requires a result.
pub fn crd() -> Result<CustomResourceDefinition, serde_json::Error> {
    let mut crd = serde_json::to_value(TrainingJob::crd())?;
    let versions = crd.pointer_mut("/spec/versions");
    for version in versions.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
            complete("", schema, false);
            if let Some(spec) = schema.pointer_mut("/properties/spec") {
                add_rules_of_edits(spec);
            }
        }
    }
    serde_json::from_value(crd)
}

/// Inserts the rules that follow from the table of fields, before the others.
fn add_rules_of_edits(spec: &mut Value) {
    let rules = FIELDS.iter();
    let rules: Vec<Value> = rules
        .filter_map(|field| field.rule(is_optional(spec, &field.path())))
        .collect();
    if let Some(all) = spec["x-kubernetes-validations"].as_array_mut() {
        all.splice(0..0, rules);
    }
}

/// Whether the API server stores the field only if the user sets it.
fn is_optional(spec: &Value, path: &str) -> bool {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    let names = parent.split('.').filter(|name| !name.is_empty());
    let parent = names.fold(spec, |schema, name| &schema["properties"][name]);
    let required = parent["required"].as_array();
    let is_required = required.is_some_and(|all| all.contains(&json!(name)));
    !is_required && parent["properties"][name].get("default").is_none()
}

/// Completes the schema of a field and all schemas below it. `is_nested` says that it is inside an
/// item of a list.
fn complete(name: &str, schema: &mut Value, is_nested: bool) {
    let Some(schema) = schema.as_object_mut() else {
        return;
    };
    schema.remove("nullable");
    match schema.get("type").and_then(Value::as_str) {
        Some("integer") => sign(schema),
        Some("string") => bound(schema),
        Some("array") => list(name, schema, is_nested),
        Some(_) | None => {}
    }
    for part in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(part) {
            complete("", inner, is_nested || part == "items");
        }
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, field) in properties.into_iter().flatten() {
        complete(name, field, is_nested);
    }
}

/// Replaces the format of an unsigned integer by the smallest signed format of Kubernetes
/// that holds every value.
fn sign(schema: &mut Map<String, Value>) {
    let format = schema.get("format").and_then(Value::as_str);
    if !format.is_some_and(|format| format.starts_with("uint")) {
        return;
    }
    let maximum = schema.get("maximum").and_then(Value::as_f64);
    let is_small = maximum.is_some_and(|maximum| maximum <= f64::from(i32::MAX));
    let format = if is_small { "int32" } else { "int64" };
    schema.insert("format".to_owned(), json!(format));
}

fn bound(schema: &mut Map<String, Value>) {
    if !schema.contains_key("enum") && !schema.contains_key("format") {
        schema.entry("maxLength").or_insert(json!(MAX_LENGTH));
    }
}

fn list(name: &str, schema: &mut Map<String, Value>, is_nested: bool) {
    let is_of_objects =
        schema.get("items").and_then(|items| items.get("type")) == Some(&json!("object"));
    let max = if is_nested && is_of_objects {
        let long = LONG_NESTED.iter().find(|(long, _)| *long == name);
        long.map_or(MAX_NESTED, |(_, max)| *max)
    } else {
        MAX_ITEMS
    };
    schema.entry("maxItems").or_insert(json!(max));
    if schema.contains_key("x-kubernetes-list-type") {
        return;
    }
    let keys = MAPS.iter().find(|(map, _)| *map == name);
    let keys: &[&str] = keys.map_or(&[], |(_, keys)| *keys);
    let required = schema.get("items").and_then(|items| items.get("required"));
    let required = required.and_then(Value::as_array);
    let has = |key: &&str| required.is_some_and(|all| all.contains(&json!(key)));
    if keys.is_empty() || !keys.iter().all(has) {
        schema.insert("x-kubernetes-list-type".to_owned(), json!("atomic"));
    } else {
        schema.insert("x-kubernetes-list-type".to_owned(), json!("map"));
        schema.insert("x-kubernetes-list-map-keys".to_owned(), json!(keys));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every schema of the definition, with its path.
    fn schemas() -> Vec<(String, Map<String, Value>)> {
        let crd = serde_json::to_value(crd().unwrap()).unwrap();
        let root = crd.pointer("/spec/versions/0/schema/openAPIV3Schema");
        let mut all = Vec::new();
        collect(String::new(), root.unwrap(), &mut all);
        all
    }

    fn collect(path: String, schema: &Value, all: &mut Vec<(String, Map<String, Value>)>) {
        let Some(object) = schema.as_object() else {
            return;
        };
        for part in ["items", "additionalProperties"] {
            if let Some(inner) = object.get(part) {
                collect(format!("{path}[]"), inner, all);
            }
        }
        let fields = object.get("properties").and_then(Value::as_object);
        for (name, field) in fields.into_iter().flatten() {
            collect(format!("{path}.{name}"), field, all);
        }
        all.push((path, object.clone()));
    }

    fn of(path: &str) -> Map<String, Value> {
        let found = schemas().into_iter().find(|(at, _)| at == path);
        found.unwrap_or_else(|| panic!("no field {path}")).1
    }

    #[test]
    fn lists_and_strings_are_bounded() {
        for (path, schema) in schemas() {
            match schema.get("type").and_then(Value::as_str) {
                Some("array") => {
                    assert!(schema.contains_key("maxItems"), "{path}");
                    assert!(schema.contains_key("x-kubernetes-list-type"), "{path}");
                }
                Some("string") => {
                    let bounds = ["maxLength", "enum", "format"];
                    let is_bounded = bounds.iter().any(|bound| schema.contains_key(*bound));
                    assert!(is_bounded, "{path}");
                }
                _ => {}
            }
        }
    }

    #[test]
    fn nested_lists_of_objects_are_short() {
        let pod = ".spec.workers.template.spec";
        for (path, max) in [
            (".volumes", 1_024),
            (".volumes[].projected.sources", 64),
            (".volumes[].projected.sources[].secret.items", 64),
            (".containers[].env", 256),
            (".containers[].envFrom", 64),
            (".containers[].args", 1_024),
        ] {
            assert_eq!(of(&format!("{pod}{path}"))["maxItems"], max, "{path}");
        }
        for (path, schema) in schemas() {
            let is_nested = path.trim_end_matches("[]").contains("[]");
            let is_of_objects = schema.get("items").is_some_and(|it| it["type"] == "object");
            if is_nested && is_of_objects {
                assert!(schema["maxItems"].as_u64() <= Some(256), "{path}");
            }
        }
    }

    #[test]
    fn no_field_accepts_null() {
        for (path, schema) in schemas() {
            assert!(!schema.contains_key("nullable"), "{path}");
            let values = schema.get("enum").and_then(Value::as_array);
            let has_null = values.is_some_and(|values| values.contains(&Value::Null));
            assert!(!has_null, "{path}");
        }
    }

    #[test]
    fn integers_have_signed_formats() {
        for (path, schema) in schemas() {
            if schema.get("type") == Some(&json!("integer")) {
                let format = schema["format"].as_str().unwrap();
                assert!(["int32", "int64"].contains(&format), "{path}: {format}");
            }
        }
        assert_eq!(of(".spec.workers.replicas")["format"], "int32");
        assert_eq!(of(".status.progress.step")["format"], "int64");
    }

    #[test]
    fn items_of_keyed_lists_have_separate_owners() {
        let spec = ".spec.workers.template.spec";
        for (path, keys) in [
            (format!("{spec}.containers"), json!(["name"])),
            (format!("{spec}.containers[].env"), json!(["name"])),
            (
                format!("{spec}.containers[].volumeMounts"),
                json!(["mountPath"]),
            ),
            (format!("{spec}.volumes"), json!(["name"])),
            (".status.avoidNodes".to_owned(), json!(["node"])),
            (".status.conditions".to_owned(), json!(["type"])),
        ] {
            let list = of(&path);
            assert_eq!(list["x-kubernetes-list-type"], "map", "{path}");
            assert_eq!(list["x-kubernetes-list-map-keys"], keys, "{path}");
        }
    }

    #[test]
    fn template_has_pod_metadata_and_optional_containers() {
        let metadata = of(".spec.workers.template.metadata");
        let fields: Vec<&String> = metadata["properties"].as_object().unwrap().keys().collect();
        assert_eq!(fields, ["annotations", "labels"]);
        let spec = of(".spec.workers.template.spec");
        assert!(!spec.contains_key("required"), "{:?}", spec["required"]);
    }

    #[test]
    fn schema_refuses_template_fields_of_the_operator() {
        let spec = of(".spec");
        let rules = spec["x-kubernetes-validations"].as_array().unwrap();
        let texts = rules.iter().filter_map(|rule| rule["rule"].as_str());
        let texts: Vec<&str> = texts.collect();
        for field in [
            "hostNetwork",
            "hostPID",
            "hostIPC",
            "nodeName",
            "hostname",
            "subdomain",
        ] {
            let path = format!("has(self.workers.template.spec.{field})");
            assert!(texts.iter().any(|text| text.contains(&path)), "{field}");
        }
    }

    #[test]
    fn definition_fits_in_client_side_apply_annotation() {
        let text = serde_json::to_string(&crd().unwrap()).unwrap();
        assert!(text.len() < 200_000, "{} of 262,144 bytes", text.len());
    }
}
