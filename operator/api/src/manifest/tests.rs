use std::collections::BTreeSet;

use serde_json::json;

use super::*;

fn found(spec: &Value) -> Vec<String> {
    let found = violations(&json!({"spec": spec}));
    found.iter().map(Violation::to_string).collect()
}

fn of(field: &str, value: &Value) -> Vec<String> {
    let mut spec = json!({"workers": {"replicas": 1}});
    let mut at = &mut spec;
    for name in field.split('.') {
        at = &mut at[name];
    }
    *at = value.clone();
    found(&spec)
}

#[test]
fn violations_name_field_and_bound() {
    for (field, value, words) in [
        (
            "failurePolicy.backoffLimit",
            json!(100_000),
            "spec.failurePolicy.backoffLimit: must be at most 10000",
        ),
        (
            "workers.replicas",
            json!(0),
            "spec.workers.replicas: must be at least 1",
        ),
        (
            "workers.replicas",
            json!(1.5),
            "spec.workers.replicas: must be of type integer",
        ),
        (
            "managedBy",
            json!(""),
            "spec.managedBy: must be at least 1 characters long",
        ),
        (
            "managedBy",
            json!("ä".repeat(64)),
            "spec.managedBy: must be at most 63 characters long",
        ),
        (
            "suspend",
            json!("yes"),
            "spec.suspend: must be of type boolean",
        ),
        (
            "successPolicy",
            json!("Any"),
            "spec.successPolicy: must be one of AllMembers, RankZero",
        ),
        (
            "failurePolicy.rules",
            json!(vec![json!({"action": "Count"}); 21]),
            "spec.failurePolicy.rules: must be at most 20 items long",
        ),
        (
            "failurePolicy.rules",
            json!([{"onReasons": ["a", "a"]}]),
            "spec.failurePolicy.rules[0].action: is required",
        ),
        (
            "trainer.optimizer.momentum",
            json!(1.5),
            "spec.trainer.optimizer.momentum: must be at most 1",
        ),
        (
            "workers.template.spec",
            json!({"containers": [{"name": "trainer"}, {"name": "trainer"}]}),
            "spec.workers.template.spec.containers[1]: is in the list twice",
        ),
    ] {
        let all = of(field, &value);
        assert!(all.iter().any(|it| it == words), "{words}: {all:?}");
    }
    let twice = of(
        "failurePolicy.rules",
        &json!([{"action": "Count", "onReasons": ["a", "a"]}]),
    );
    assert_eq!(
        twice,
        ["spec.failurePolicy.rules[0].onReasons[1]: is in the list twice"]
    );
}

#[test]
fn valid_values_have_no_violation() {
    for (field, value) in [
        ("failurePolicy.backoffLimit", json!(10_000)),
        ("workers.replicas", json!(1.0)),
        ("checkpoint", Value::Null),
        ("managedBy", json!("ä".repeat(63))),
        (
            "workers.template.spec",
            json!({"nodeSelector": {"pool": "a"}, "containers": [{"name": "trainer", "ports": [], "resources": {
                "limits": {"cpu": 2, "memory": "1Gi"},
            }}]}),
        ),
    ] {
        assert_eq!(of(field, &value), Vec::<String>::new(), "{field}");
    }
}

#[test]
fn examples_have_no_violation() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let mut num_jobs = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        for job in documents.iter().filter(|it| it["kind"] == "TrainingJob") {
            assert_eq!(violations(job), [], "{}", path.display());
            num_jobs += 1;
        }
    }
    assert!(num_jobs > 5, "{num_jobs}");
}

/// Keywords that this module reads, or that bound no value.
const KNOWN: [&str; 19] = [
    "additionalProperties",
    "default",
    "description",
    "enum",
    // Each `format` here is of a type whose values Rust's types bound.
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "properties",
    "required",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-preserve-unknown-fields",
];

#[test]
fn schema_keywords_are_known() {
    fn collect(schema: &Value, all: &mut BTreeSet<String>) {
        let Some(fields) = schema.as_object() else {
            return;
        };
        all.extend(fields.keys().cloned());
        collect(&schema["items"], all);
        collect(&schema["additionalProperties"], all);
        for (_, field) in schema["properties"].as_object().into_iter().flatten() {
            collect(field, all);
        }
    }
    let mut all = BTreeSet::new();
    collect(SPEC.as_ref().unwrap(), &mut all);
    all.remove("x-kubernetes-validations");
    let known: BTreeSet<String> = KNOWN.iter().map(|word| (*word).to_owned()).collect();
    let unknown: Vec<&String> = all.difference(&known).collect();
    assert!(
        unknown.is_empty(),
        "operator/api/src/manifest.rs does not check {unknown:?}"
    );
}
