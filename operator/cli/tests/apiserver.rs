//! Calls the plugin as a user does, with a real API server. No operator runs: the test writes the
//! status.

#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

#[path = "apiserver/environment.rs"]
mod environment;

use std::path::Path;

use environment::{Environment, NAMESPACE};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

const JOB: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: digits-data}\ndata: {a: b}\n---\n\
    apiVersion: roundhouse.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: digits}\nspec:\n  \
    workers: {replicas: 2, minReplicas: 2, maxReplicas: 5}\n  \
    trainer: {model: {name: mlp}, data: {format: idx}, globalBatchSize: 8, epochs: 1}\n";

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_controls_a_job_on_a_real_api_server() {
    let environment = Environment::new().await;
    let (code, out, _) = environment.call(&["version"]).await;
    assert_eq!(code, 0);
    assert!(
        out.contains("roundhouse.dev/v1alpha1") && out.contains("Kubernetes"),
        "{out}"
    );
    let (code, _, error) = environment.call(&["status"]).await;
    assert_eq!(code, 0);
    assert!(error.contains("submit -f"), "{error}");

    // An invalid file is refused before anything is applied, and a dry run changes nothing.
    let wrong = environment.file(&JOB.replace("epochs", "epoch"));
    let (code, _, error) = environment.call(&["submit", "-f", path(&wrong)]).await;
    assert_eq!(code, 1);
    assert!(error.contains("spec.trainer.epoch"), "{error}");
    let file = environment.file(JOB);
    let (code, out, error) = environment
        .call(&["submit", "-f", path(&file), "--dry-run"])
        .await;
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("dry run"), "{out}");
    assert!(
        environment
            .jobs()
            .get_opt("digits")
            .await
            .unwrap()
            .is_none()
    );
    let maps: Api<ConfigMap> = Api::namespaced(environment.client.clone(), NAMESPACE);
    assert!(maps.get_opt("digits-data").await.unwrap().is_none());
    let (code, out, error) = environment.call(&["submit", "-f", path(&file)]).await;
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("TrainingJob digits is applied"), "{out}");
    assert!(maps.get_opt("digits-data").await.unwrap().is_some());
    let (code, _, error) = environment
        .call(&["submit", "-f", path(&file), "-n", "other"])
        .await;
    assert_eq!(code, 1, "there is no such namespace: {error}");

    // No operator has seen the job.
    let (code, out, _) = environment.call(&["why", "digits"]).await;
    assert_eq!(code, 4);
    assert!(out.contains("has not seen the job"), "{out}");

    steer(&environment).await;
    submit_again(&environment).await;
    explain(&environment).await;
    end(&environment).await;
}

async fn steer(environment: &Environment) {
    // Scale the workers within their bounds.
    let (code, out, _) = environment
        .call(&["scale", "digits", "3", "--dry-run"])
        .await;
    assert_eq!((code, environment.replicas().await), (0, 2));
    assert!(
        out.contains("from 2 to 3 workers") && out.contains("dry run"),
        "{out}"
    );
    let (code, out, _) = environment
        .call(&["scale", "digits", "3", "-o", "json"])
        .await;
    assert_eq!((code, environment.replicas().await), (0, 3));
    let job: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(job["spec"]["workers"]["replicas"], 3);
    for (number, field) in [("1", "minReplicas"), ("6", "maxReplicas")] {
        let (code, _, error) = environment.call(&["scale", "digits", number]).await;
        assert_eq!((code, environment.replicas().await), (1, 3));
        assert!(error.contains(field), "{error}");
    }

    // Without a checkpoint, suspending the job needs --yes.
    let membership = json!({"generation": 1, "worldSize": 2, "nodes": 2, "members": "m"});
    environment.status(json!({"membership": membership})).await;
    let (code, _, error) = environment.call(&["suspend", "digits"]).await;
    assert_eq!(code, 1);
    assert!(error.contains("--yes"), "{error}");
    assert!(!environment.jobs().get("digits").await.unwrap().spec.suspend);

    // The second suspend and the second resume change nothing.
    for (command, suspended, words) in [
        (&["suspend", "digits", "--yes"][..], true, "resume digits"),
        (&["suspend", "digits"], true, "already"),
        (&["resume", "digits"], false, "is resumed"),
        (&["resume", "digits"], false, "is not suspended"),
    ] {
        let (code, out, error) = environment.call(command).await;
        assert_eq!(code, 0, "{error}");
        assert!(out.contains(words), "{out}");
        let job = environment.jobs().get("digits").await.unwrap();
        assert_eq!(job.spec.suspend, suspended);
    }
}

/// Submitting a file overrides changes by the plugin, but changes by another tool only with
/// `--force-conflicts`.
async fn submit_again(environment: &Environment) {
    let file = environment.file(&JOB.replace("replicas: 2, min", "replicas: 4, min"));
    let (code, _, error) = environment.call(&["submit", "-f", path(&file)]).await;
    assert_eq!((code, environment.replicas().await), (0, 4), "{error}");
    let (parameters, other) = (
        PatchParams {
            field_manager: Some("autoscaler".to_owned()),
            ..PatchParams::default()
        },
        json!({"spec": {"workers": {"replicas": 5}}}),
    );
    let patch = Patch::Merge(&other);
    environment
        .jobs()
        .patch("digits", &parameters, &patch)
        .await
        .unwrap();
    let (code, _, error) = environment.call(&["submit", "-f", path(&file)]).await;
    assert_eq!((code, environment.replicas().await), (1, 5));
    for words in ["spec.workers.replicas", "autoscaler", "--force-conflicts"] {
        assert!(error.contains(words), "{error}");
    }
    let force = ["submit", "-f", path(&file), "--force-conflicts"];
    let (code, _, error) = environment.call(&force).await;
    assert_eq!((code, environment.replicas().await), (0, 4), "{error}");
}

async fn explain(environment: &Environment) {
    // A pod without a node explains why the job does not train.
    environment.unschedulable_pod().await;
    let condition = json!({"type": "Running", "status": "False", "reason": "Unschedulable",
        "message": "0 of 3 workers ready", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    environment
        .status(json!({"conditions": [condition], "startTime": "2026-01-01T00:00:00Z"}))
        .await;
    let (code, out, _) = environment.call(&["why", "digits"]).await;
    assert_eq!(code, 4);
    assert!(
        out.starts_with("Unschedulable") && out.contains("nvidia.com/gpu"),
        "{out}"
    );
    let (code, out, _) = environment.call(&["status", "digits", "-o", "json"]).await;
    assert_eq!(code, 0);
    let view: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(view["ranks"][0]["state"], "Unschedulable", "{out}");
    let (code, out, _) = environment.call(&["status", "-A"]).await;
    assert_eq!(code, 0);
    assert!(out.contains("ml         digits"), "{out}");
    let (code, out, error) = environment
        .call(&["report", "digits", "--file", "report.zip"])
        .await;
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("report.zip"), "{out}");
}

async fn end(environment: &Environment) {
    // A failed job cannot be scaled, but it can be deleted.
    let failed = json!({"type": "Failed", "status": "True", "reason": "StartDeadlineExceeded",
        "message": "no GPU", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    environment.status(json!({"conditions": [failed]})).await;
    let (code, _, error) = environment.call(&["scale", "digits", "2"]).await;
    assert_eq!(code, 1);
    assert!(error.contains("stop digits"), "{error}");
    let (code, _, error) = environment.call(&["watch", "digits"]).await;
    assert_eq!(code, 1, "{error}");
    let (code, _, _) = environment.call(&["stop", "digits", "--dry-run"]).await;
    assert_eq!(code, 0);
    assert!(
        environment
            .jobs()
            .get_opt("digits")
            .await
            .unwrap()
            .is_some()
    );
    let (code, out, error) = environment.call(&["stop", "digits"]).await;
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("deleted"), "{out}");
    let (code, _, error) = environment.call(&["status", "digits"]).await;
    assert_eq!(code, 1);
    assert!(error.contains("kubectl roundhouse status"), "{error}");
}
