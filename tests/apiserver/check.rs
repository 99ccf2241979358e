//! The command `roundhouse-operator check`, which `helm test` runs.

use kube::api::{Patch, PatchParams};
use roundhouse_operator::check::{CheckError, Options, follow};
use serde_json::json;

use crate::environment::{Environment, NAMESPACE};

fn options(timeout_seconds: u64) -> Options {
    Options {
        name: "digits".to_owned(),
        namespace: NAMESPACE.to_owned(),
        timeout_seconds,
    }
}

/// Replaces the conditions of the job by a single one.
async fn set_condition(env: &Environment, kind: &str) {
    let condition = json!({"type": kind, "status": "True", "reason": "TestReason", "message": "a message",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let patch = Patch::Merge(json!({"status": {"replicas": 0, "conditions": [condition]}}));
    let jobs = env.jobs(NAMESPACE);
    jobs.patch_status("digits", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn check_distinguishes_success_failure_and_no_operator() {
    let env = Environment::new().await;
    let follow = |seconds| {
        let client = env.client.clone();
        async move { follow(client, &options(seconds), |_| ()).await }
    };
    let error = follow(600).await.unwrap_err();
    assert!(matches!(error, CheckError::Unreadable { .. }), "{error}");

    env.apply(NAMESPACE, 2).await;
    match follow(0).await.unwrap_err() {
        CheckError::NotInTime { last, .. } => assert!(last.contains("no operator"), "{last}"),
        error => panic!("{error}"),
    }
    set_condition(&env, "Failed").await;
    match follow(600).await.unwrap_err() {
        CheckError::Failed(message) => assert_eq!(message, "TestReason: a message"),
        error => panic!("{error}"),
    }
    set_condition(&env, "Succeeded").await;
    assert_eq!(follow(600).await.unwrap(), "TestReason: a message");
}
