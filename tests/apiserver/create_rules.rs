//! Rules for new jobs in the schema of the TrainingJob and its CEL rules: what the API server
//! refuses, and its messages.

use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use roundhouse_api::TrainingJob;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, job};

use self::cases::{
    bad_models, bad_scaling, bad_scheduling, bad_specs, bad_templates, bad_trainers, good_trainers,
    too_large,
};

mod cases;

/// A job with these fields merged into its spec.
fn with(fields: &Value) -> Value {
    fn merge(into: &mut Value, from: &Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from.clone(),
        }
    }
    let mut changed = job(1);
    merge(&mut changed["spec"], fields);
    changed
}

#[tokio::test(flavor = "multi_thread")]
async fn contradictory_trainer_names_the_field_to_remove() {
    let env = Environment::new().await;
    for (fields, words) in [bad_models(), bad_trainers()].concat() {
        let message = refusal(&env, &with(&fields)).await;
        assert!(message.contains(words), "{fields}: {message}");
    }
    let mut script = job(1);
    let template =
        json!({"spec": {"containers": [{"name": "trainer", "image": "a", "command": ["b"]}]}});
    script["spec"] = json!({
        "workers": {"replicas": 1, "template": template}, "elastic": {"mode": "Restart"},
        "checkpoint": {"volume": {"hostPath": {"path": "/a"}}, "best": {"metric": "loss"}},
    });
    let message = refusal(&env, &script).await;
    assert!(message.contains("leave out checkpoint.best"), "{message}");
    for mode in ["Restart", "InProcess"] {
        script["spec"]["elastic"] =
            json!({"mode": mode, "onScale": "ScaleBatch", "scaleBatch": {"referenceReplicas": 1}});
        let message = refusal(&env, &script).await;
        assert!(message.contains("is for the built-in trainer"), "{message}");
    }
    script["spec"]["workers"]["sharded"] = json!(true);
    script["spec"]["elastic"] = json!({"mode": "Restart"});
    let message = refusal(&env, &script).await;
    assert!(message.contains("workers.sharded is for"), "{message}");
    script["spec"]["workers"]["template"]["spec"] = json!({"priorityClassName": "low"});
    let message = refusal(&env, &script).await;
    assert!(message.contains("a container named trainer"), "{message}");
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    for fields in good_trainers() {
        let good = serde_json::from_value(with(&fields)).unwrap();
        let created = env.jobs(NAMESPACE).create(&dry, &good).await;
        assert!(created.is_ok(), "{fields}: {created:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_spec_is_refused_with_advice() {
    let env = Environment::new().await;
    let all = [
        bad_specs(),
        too_large(),
        bad_templates(),
        bad_scheduling(),
        bad_scaling(),
    ];
    for (field, value, words) in all.into_iter().flatten() {
        let mut wrong = job(1);
        wrong["spec"][field] = value.clone();
        let message = refusal(&env, &wrong).await;
        assert!(message.contains(words), "{field}: {value}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_characters_are_refused() {
    let env = Environment::new().await;
    for text in ["a\nb", "a\u{0}b", "a\u{1b}[2Jb"] {
        let mut wrong = job(1);
        wrong["metadata"]["name"] = json!(text);
        let message = refusal(&env, &wrong).await;
        assert!(message.contains("metadata.name"), "{text:?}: {message}");
        let mut wrong = job(1);
        wrong["metadata"]["labels"] = json!({"team": text});
        let message = refusal(&env, &wrong).await;
        assert!(message.contains("metadata.labels"), "{text:?}: {message}");
    }
}

/// Sends a job that the API server must refuse, and returns its message. The job is sent as JSON,
/// because the Rust types cannot represent some of them.
async fn refusal(env: &Environment, job: &Value) -> String {
    let path = format!("/apis/roundhouse.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs");
    let request = kube::core::Request::new(path);
    let body = serde_json::to_vec(job).unwrap();
    let request = request.create(&PostParams::default(), body).unwrap();
    match env.client.request::<Value>(request).await {
        Err(kube::Error::Api(status)) => status.message.clone(),
        other => panic!("{job}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn null_field_is_treated_as_absent() {
    let env = Environment::new().await;
    let mut wanted = job(2);
    for pointer in [
        "/checkpoint",
        "/workers/minReplicas",
        "/trainer/steps",
        "/suspend",
        "/elastic",
    ] {
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        wanted["spec"].pointer_mut(parent).unwrap()[last] = Value::Null;
    }
    let kind = ApiResource::erase::<TrainingJob>(&());
    let jobs: Api<DynamicObject> = Api::namespaced_with(env.client.clone(), NAMESPACE, &kind);
    let wanted: DynamicObject = serde_json::from_value(wanted).unwrap();
    jobs.create(&PostParams::default(), &wanted).await.unwrap();
    let spec = env.job(NAMESPACE).await.spec;
    assert!(spec.checkpoint.is_none() && spec.workers.min_replicas.is_none());
    assert!(!spec.suspend);
    assert_eq!(spec.elastic.join_window_seconds, 10, "the default");
    let stored = jobs.get("digits").await.unwrap().data;
    let has = |pointer: &str| stored.pointer(pointer).is_some();
    assert!(
        has("/spec/trainer/epochs") && !has("/spec/checkpoint"),
        "{stored}"
    );
}
