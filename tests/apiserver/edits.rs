//! Edits of a job that the API server itself refuses, by CEL rules, and how it says so.

use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use roundhouse_api::TrainingJob;
use serde_json::{Value, json};

use crate::stage::{NAMESPACE, Stage, job};

/// The API server's words about an edit that it refuses.
async fn refusal(stage: &Stage, spec: &Value) -> String {
    match stage.edit(spec).await {
        Err(kube::Error::Api(status)) => status.message.clone(),
        other => panic!("{spec}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_running_pods_have_cannot_be_edited_until_the_job_is_suspended() {
    let stage = Stage::new().await;
    let mut first = job(1);
    first["spec"]["checkpoint"] = json!({"volume": {"persistentVolumeClaim": {"claimName": "c"}}});
    stage.create(NAMESPACE, first).await;
    let edits = [
        (json!({"checkpoint": {"keep": 5}}), "spec.checkpoint"),
        (json!({"checkpoint": null}), "spec.checkpoint"),
        (
            json!({"failurePolicy": {"rules": [{"action": "Ignore", "onReasons": ["x"]}]}}),
            "spec.failurePolicy",
        ),
        (
            json!({"stallTimeoutSeconds": 60}),
            "spec.stallTimeoutSeconds",
        ),
        (
            json!({"elastic": {"leaveGraceSeconds": 60}}),
            "spec.elastic",
        ),
        (
            json!({"scheduling": {"priorityClassName": "low"}}),
            "spec.scheduling",
        ),
        (
            json!({"scheduling": {"topologyKey": "rack"}}),
            "spec.scheduling",
        ),
    ];
    for (spec, field) in &edits {
        let message = refusal(&stage, spec).await;
        assert!(
            message.contains(field) && message.contains("suspend: true"),
            "{message}"
        );
    }
    stage.edit(&json!({"suspend": true})).await.unwrap();
    for (spec, _) in &edits {
        stage.edit(spec).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_can_place_and_resume_a_job_in_one_update_and_take_both_back_in_two() {
    let stage = Stage::new().await;
    let mut queued = job(1);
    queued["spec"]["suspend"] = json!(true);
    stage.create(NAMESPACE, queued).await;
    let placed = |pool: Value| json!({"template": {"spec": {"nodeSelector": {"pool": pool}}}});
    let admitted = json!({"suspend": false, "workers": placed(json!("spot"))});
    stage.edit(&admitted).await.unwrap();
    stage.edit(&json!({"suspend": true})).await.unwrap();
    let restored = json!({"workers": placed(Value::Null)});
    stage.edit(&restored).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_network_policy_cannot_be_edited() {
    let stage = Stage::new().await;
    stage.create(NAMESPACE, job(1)).await;
    let message = refusal(&stage, &json!({"networkPolicy": "None"})).await;
    assert!(message.contains("networkPolicy is immutable"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gang_scheduler_cannot_be_edited() {
    let stage = Stage::new().await;
    stage.create(NAMESPACE, job(1)).await;
    let message = refusal(&stage, &json!({"scheduling": {"gang": "Volcano"}})).await;
    assert!(message.contains("gang is immutable"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn how_the_batch_follows_the_workers_cannot_be_edited() {
    let stage = Stage::new().await;
    let mut first = job(1);
    first["spec"]["elastic"] =
        json!({"onScale": "ScaleBatch", "scaleBatch": {"referenceReplicas": 1}});
    stage.create(NAMESPACE, first).await;
    for elastic in [
        json!({"scaleBatch": {"referenceReplicas": 2}}),
        json!({"onScale": "KeepGlobalBatch", "scaleBatch": null}),
    ] {
        let message = refusal(&stage, &json!({"elastic": elastic})).await;
        assert!(message.contains("is immutable"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn options_of_a_custom_model_are_kept_as_they_are_and_cannot_be_edited() {
    let stage = Stage::new().await;
    let mut first = job(1);
    let options = json!({"units": 3, "layers": [{"width": 0.5}, {"width": null}], "name": "tides"});
    first["spec"]["trainer"]["options"] = options.clone();
    first["spec"]["trainer"]["model"] = json!({"name": "custom"});
    stage.create(NAMESPACE, first).await;
    let trainer = stage.job(NAMESPACE).await.spec.trainer.unwrap();
    assert_eq!(serde_json::to_value(&trainer.options).unwrap(), options);
    for edited in [
        json!({"units": 4}),
        json!({"units": null}),
        json!({"units": null, "unit": 3}),
        json!({"units": {"a": 1}}),
        json!({"more": true}),
        json!({"layers": [{"width": 0.6}, {"width": null}]}),
    ] {
        let message = refusal(&stage, &json!({"trainer": {"options": edited}})).await;
        assert!(message.contains("trainer is immutable"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_is_null_is_as_if_it_were_left_out() {
    let stage = Stage::new().await;
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
    let jobs: Api<DynamicObject> = Api::namespaced_with(stage.client.clone(), NAMESPACE, &kind);
    let wanted: DynamicObject = serde_json::from_value(wanted).unwrap();
    jobs.create(&PostParams::default(), &wanted).await.unwrap();
    let spec = stage.job(NAMESPACE).await.spec;
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
