//! Schemas that differ from what their Rust types derive: the API server wants structural schemas,
//! bounded and small enough for client-side `kubectl apply`.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use roundhouse_contract::TrainerConfig;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// `spec.trainer`. Unknown keys are refused by the type, which a structural schema cannot say
/// (`additionalProperties: false`): there the API server prunes or, with strict validation, names
/// them.
pub fn trainer(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<TrainerConfig>();
    for_each_object(schema.as_object_mut(), &mut |object| {
        if object.get("additionalProperties") == Some(&Value::Bool(false)) {
            object.remove("additionalProperties");
        }
    });
    schema
}

/// `spec.workers.template`: a whole pod template. Descriptions are left out: with them the CRD
/// would not fit in the annotation that client-side `kubectl apply` writes (262,144 bytes). A list
/// without a bound gets one, since CEL estimates the cost of comparing templates from the bounds.
pub fn pod_template(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<PodTemplateSpec>();
    for_each_object(schema.as_object_mut(), &mut |object| {
        if object.get("description").is_some_and(Value::is_string) {
            object.remove("description");
        }
    });
    schema.insert("description".to_owned(), json!("Pod template of the workers: resources, node selection, volumes, image. The container named `trainer` runs the training; without a template it is made for you. Immutable while the job is not suspended."));
    schema
}

/// `status.conditions`: a list-map by type.
pub fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let items = generator.subschema_for::<Condition>();
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
