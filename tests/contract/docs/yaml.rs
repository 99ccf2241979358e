//! Every YAML block of the documentation parses. A TrainingJob is valid, and all fields of a part
//! of one exist.

use roundhouse_api::TrainingJob;
use roundhouse_planner::validate;
use roundhouse_tests::manifests;
use serde_json::Value;

use super::{markdown, pages};

/// The `OpenAPI` schema of a `TrainingJob`'s spec.
fn schema() -> Value {
    let crd = manifests::read("crds/trainingjobs.yaml").unwrap().remove(0);
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

#[test]
fn every_job_on_a_page_is_valid() {
    let schema = schema();
    let (mut jobs, mut parts) = (0, 0);
    for page in pages() {
        let blocks = markdown::blocks(&page.text).into_iter();
        for block in blocks.filter(|block| block.language == "yaml") {
            let place = format!("{}:{}", page.path, block.line);
            for document in block.text.split("\n---\n") {
                let value: Value = serde_saphyr::from_str(document)
                    .unwrap_or_else(|error| panic!("{place}: {error}"));
                if value["kind"] == "TrainingJob" {
                    assert_eq!(unknown(&value["spec"], &schema, "spec"), [""; 0], "{place}");
                    let mut job: TrainingJob = serde_json::from_value(value)
                        .unwrap_or_else(|error| panic!("{place}: {error}"));
                    job.metadata.namespace = Some("default".to_owned());
                    assert!(validate(&job).is_ok(), "{place}: {:?}", validate(&job));
                    jobs += 1;
                } else if value["kind"].is_null() && value["spec"].is_object() {
                    assert_eq!(unknown(&value["spec"], &schema, "spec"), [""; 0], "{place}");
                    parts += 1;
                }
            }
        }
    }
    assert!(jobs > 5 && parts > 3, "{jobs} jobs, {parts} parts");
}

/// The paths of the fields that the schema lacks.
fn unknown(value: &Value, schema: &Value, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    let properties = schema["properties"].as_object();
    match value {
        Value::Object(fields) if properties.is_some() => {
            for (name, field) in fields {
                let path = format!("{path}.{name}");
                let known = &schema["properties"][name];
                if known.is_object() {
                    found.extend(unknown(field, known, &path));
                } else {
                    found.push(path);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                found.extend(unknown(item, &schema["items"], &format!("{path}[]")));
            }
        }
        _ => {}
    }
    found
}

#[test]
fn unknown_fields_are_found() {
    let spec = serde_json::json!({"workers": {"replica": 2}, "suspend": true});
    assert_eq!(unknown(&spec, &schema(), "spec"), ["spec.workers.replica"]);
}
