//! `roundhouse-operator check`, which `helm test` runs.

use kube::api::{Patch, PatchParams};
use roundhouse_operator::check::{CheckError, Options, follow};
use serde_json::json;

use crate::stage::{NAMESPACE, Stage};

fn options(timeout_seconds: u64) -> Options {
    Options {
        name: "digits".to_owned(),
        namespace: NAMESPACE.to_owned(),
        timeout_seconds,
    }
}

/// A job whose only condition is this one.
async fn ends(stage: &Stage, kind: &str) {
    let condition = json!({"type": kind, "status": "True", "reason": "Because", "message": "it is so",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let patch = Patch::Merge(json!({"status": {"replicas": 0, "conditions": [condition]}}));
    let jobs = stage.jobs(NAMESPACE);
    jobs.patch_status("digits", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_tells_success_failure_a_missing_job_and_a_missing_operator_apart() {
    let stage = Stage::new().await;
    let follow = |seconds| {
        let client = stage.client.clone();
        async move { follow(client, &options(seconds), |_| ()).await }
    };
    let error = follow(600).await.unwrap_err();
    assert!(matches!(error, CheckError::Unreadable { .. }), "{error}");

    stage.apply(NAMESPACE, 2).await;
    match follow(0).await.unwrap_err() {
        CheckError::NotInTime { last, .. } => assert!(last.contains("no operator"), "{last}"),
        error => panic!("{error}"),
    }
    ends(&stage, "Failed").await;
    match follow(600).await.unwrap_err() {
        CheckError::Failed(words) => assert_eq!(words, "Because: it is so"),
        error => panic!("{error}"),
    }
    ends(&stage, "Succeeded").await;
    assert_eq!(follow(600).await.unwrap(), "Because: it is so");
}
