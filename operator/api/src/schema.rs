//! Schemas that differ from what their Rust types derive: the API server needs structural schemas,
//! bounded and small enough for client-side `kubectl apply`.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use roundhouse_contract::TrainerConfig;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// The schema of `spec.trainer`. The type refuses unknown keys, which a structural schema cannot
/// express (`additionalProperties: false`): there the API server prunes them or, with strict
/// validation, names them in an error.
pub fn trainer(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<TrainerConfig>();
    for_each_object(schema.as_object_mut(), &mut |object| {
        if object.get("additionalProperties") == Some(&Value::Bool(false)) {
            object.remove("additionalProperties");
        }
    });
    schema
}

/// The schema of `spec.workers.template`: a whole pod template. Descriptions are left out: with
/// them the CRD would not fit in the annotation that client-side `kubectl apply` writes (262,144
/// bytes).
pub fn pod_template(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<PodTemplateSpec>();
    for_each_object(schema.as_object_mut(), &mut |object| {
        if object.get("description").is_some_and(Value::is_string) {
            object.remove("description");
        }
    });
    if let Some(spec) = schema.pointer_mut("/properties/spec") {
        // A template that only sets an affinity need not name a container.
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("required");
        }
    }
    if let Some(metadata) = schema.pointer_mut("/properties/metadata") {
        *metadata = pod_metadata();
    }
    schema.insert("description".to_owned(), json!("Pod template of the workers: resources, node selection, volumes, image. The container named `trainer` runs the training; with the built-in trainer it may be left out. Immutable while the job is not suspended."));
    schema
}

/// The metadata that pods take from the template. Other metadata would have no effect, so the
/// schema does not know it.
fn pod_metadata() -> Value {
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    json!({"type": "object", "properties": {"annotations": texts, "labels": texts}})
}

/// Bounds of a condition's fields, as in `metav1.Condition`.
const CONDITION: [(&str, &str); 5] = [
    ("message", r#"{"maxLength": 32768}"#),
    ("observedGeneration", r#"{"minimum": 0}"#),
    (
        "reason",
        r#"{"minLength": 1, "maxLength": 1024, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"}"#,
    ),
    ("status", r#"{"enum": ["True", "False", "Unknown"]}"#),
    (
        "type",
        r#"{"maxLength": 316, "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"}"#,
    ),
];

/// The schema of `status.conditions`: a list-map by type.
pub fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let mut items = generator.subschema_for::<Condition>();
    for (field, bounds) in CONDITION {
        let field = items.pointer_mut(&format!("/properties/{field}"));
        let bounds = serde_json::from_str::<Map<String, Value>>(bounds);
        if let (Some(Value::Object(field)), Ok(bounds)) = (field, bounds) {
            field.extend(bounds);
        }
    }
    schemars::json_schema!({
        "type": "array",
        "items": items,
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

/// Calls `visit` for a schema and everything below it.
fn for_each_object(
    object: Option<&mut Map<String, Value>>,
    visit: &mut impl FnMut(&mut Map<String, Value>),
) {
    let Some(object) = object else { return };
    visit(object);
    for value in object.values_mut() {
        match value {
            Value::Object(inner) => for_each_object(Some(inner), visit),
            Value::Array(list) => {
                for item in list {
                    for_each_object(item.as_object_mut(), visit);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}
