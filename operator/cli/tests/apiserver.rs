//! The plugin as a user calls it, against a real API server. No operator runs: the test writes what it would.

#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use roundhouse_api::TrainingJob;
use roundhouse_tests::apiserver::ApiServer;
use roundhouse_tests::cluster::until;
use roundhouse_tests::manifests;
use serde_json::{Value, json};
use tempfile::TempDir;

const NAMESPACE: &str = "ml";
const SOON: Duration = Duration::from_secs(30);
const JOB: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: digits-data}\ndata: {a: b}\n---\n\
    apiVersion: roundhouse.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: digits}\nspec:\n  \
    workers: {replicas: 2, minReplicas: 2, maxReplicas: 5}\n  \
    trainer: {model: {name: mlp}, data: {format: idx}, globalBatchSize: 8, epochs: 1}\n";

struct Stage {
    _server: ApiServer,
    client: Client,
    directory: TempDir,
}

/// How a call ended: exit code, standard output, standard error.
type Said = (i32, String, String);

impl Stage {
    async fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let server = ApiServer::start(directory.path()).await.unwrap();
        let client = server.client("test").unwrap();
        let url = server.config("test").unwrap().cluster_url.to_string();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": url, "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": "test"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
        });
        std::fs::write(directory.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        let crd = manifests::read("crds/trainingjobs.yaml").unwrap().remove(0);
        let crd: CustomResourceDefinition = serde_json::from_value(crd).unwrap();
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        crds.create(&PostParams::default(), &crd).await.unwrap();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).unwrap();
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        let stage = Self {
            _server: server,
            client,
            directory,
        };
        until("the kind is served", SOON, || async {
            Ok(stage.jobs().list(&ListParams::default()).await.ok())
        })
        .await
        .unwrap();
        stage
    }

    fn jobs(&self) -> Api<TrainingJob> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn replicas(&self) -> u32 {
        self.jobs()
            .get("digits")
            .await
            .unwrap()
            .spec
            .workers
            .replicas
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.directory.path().join("job.yaml");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Calls the plugin in a thread, so that the client's tasks continue.
    async fn call(&self, arguments: &[&str]) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-roundhouse"));
        command
            .args(arguments)
            .env("KUBECONFIG", self.directory.path().join("kubeconfig"))
            .current_dir(self.directory.path())
            .stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        let output = output.unwrap().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (out, error) = (text(output.stdout), text(output.stderr));
        assert!(
            !out.contains('\u{1b}') && !error.contains('\u{1b}'),
            "{out}{error}"
        );
        (output.status.code().unwrap(), out, error)
    }

    async fn status(&self, status: Value) {
        let patch = json!({"status": status});
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
        self.jobs()
            .patch_status("digits", &parameters, &patch)
            .await
            .unwrap();
    }

    /// A pod of the job that the scheduler finds no node for.
    async fn unschedulable_pod(&self) {
        let uid = self.jobs().get("digits").await.unwrap().uid().unwrap();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let pod = json!({
            "metadata": {"name": "digits-worker-0-0", "labels": {
                "roundhouse.dev/job-uid": uid, "roundhouse.dev/worker-index": "0"}},
            "spec": {"containers": [{"name": "trainer", "image": "i"}]},
        });
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
        let status = json!({"status": {"phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}]}});
        let patch = Patch::Merge(&status);
        pods.patch_status("digits-worker-0-0", &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_submitted_explained_steered_and_stopped() {
    let stage = Stage::new().await;
    let (code, out, _) = stage.call(&["version"]).await;
    assert_eq!(code, 0);
    assert!(
        out.contains("roundhouse.dev/v1alpha1") && out.contains("Kubernetes"),
        "{out}"
    );
    let (code, _, error) = stage.call(&["status"]).await;
    assert_eq!(code, 0);
    assert!(error.contains("submit -f"), "{error}");

    // A mistake is told before anything is applied, and a dry run changes nothing.
    let wrong = stage.file(&JOB.replace("epochs", "epoch"));
    let (code, _, error) = stage.call(&["submit", "-f", path(&wrong)]).await;
    assert_eq!(code, 1);
    assert!(error.contains("spec.trainer.epoch"), "{error}");
    let file = stage.file(JOB);
    let (code, out, error) = stage
        .call(&["submit", "-f", path(&file), "--dry-run"])
        .await;
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("dry run"), "{out}");
    assert!(stage.jobs().get_opt("digits").await.unwrap().is_none());
    let maps: Api<ConfigMap> = Api::namespaced(stage.client.clone(), NAMESPACE);
    assert!(maps.get_opt("digits-data").await.unwrap().is_none());
    let (code, out, error) = stage.call(&["submit", "-f", path(&file)]).await;
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("TrainingJob digits is applied"), "{out}");
    assert!(maps.get_opt("digits-data").await.unwrap().is_some());
    let (code, _, error) = stage
        .call(&["submit", "-f", path(&file), "-n", "other"])
        .await;
    assert_eq!(code, 1, "there is no such namespace: {error}");

    // Nobody has seen it.
    let (code, out, _) = stage.call(&["why", "digits"]).await;
    assert_eq!(code, 4);
    assert!(out.contains("has not looked at the job"), "{out}");

    steer(&stage).await;
    submit_again(&stage).await;
    explain(&stage).await;
    end(&stage).await;
}

async fn steer(stage: &Stage) {
    // Its workers.
    let (code, out, _) = stage.call(&["scale", "digits", "3", "--dry-run"]).await;
    assert_eq!((code, stage.replicas().await), (0, 2));
    assert!(
        out.contains("from 2 to 3 workers") && out.contains("dry run"),
        "{out}"
    );
    let (code, out, _) = stage.call(&["scale", "digits", "3", "-o", "json"]).await;
    assert_eq!((code, stage.replicas().await), (0, 3));
    let job: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(job["spec"]["workers"]["replicas"], 3);
    for (number, field) in [("1", "minReplicas"), ("6", "maxReplicas")] {
        let (code, _, error) = stage.call(&["scale", "digits", number]).await;
        assert_eq!((code, stage.replicas().await), (1, 3));
        assert!(error.contains(field), "{error}");
    }

    // It has no checkpoint, so its training is given up by request alone.
    let membership = json!({"generation": 1, "worldSize": 2, "nodes": 2, "members": "m"});
    stage.status(json!({"membership": membership})).await;
    let (code, _, error) = stage.call(&["suspend", "digits"]).await;
    assert_eq!(code, 1);
    assert!(error.contains("--yes"), "{error}");
    assert!(!stage.jobs().get("digits").await.unwrap().spec.suspend);

    // Suspended and resumed, once each.
    for (command, suspended, words) in [
        (&["suspend", "digits", "--yes"][..], true, "resume digits"),
        (&["suspend", "digits"], true, "already"),
        (&["resume", "digits"], false, "is resumed"),
        (&["resume", "digits"], false, "is not suspended"),
    ] {
        let (code, out, error) = stage.call(command).await;
        assert_eq!(code, 0, "{error}");
        assert!(out.contains(words), "{out}");
        let job = stage.jobs().get("digits").await.unwrap();
        assert_eq!(job.spec.suspend, suspended);
    }
}

/// A file follows what the plugin itself has changed, and takes a field from another tool only by force.
async fn submit_again(stage: &Stage) {
    let file = stage.file(&JOB.replace("replicas: 2, min", "replicas: 4, min"));
    let (code, _, error) = stage.call(&["submit", "-f", path(&file)]).await;
    assert_eq!((code, stage.replicas().await), (0, 4), "{error}");
    let (parameters, other) = (
        PatchParams {
            field_manager: Some("autoscaler".to_owned()),
            ..PatchParams::default()
        },
        json!({"spec": {"workers": {"replicas": 5}}}),
    );
    let patch = Patch::Merge(&other);
    stage
        .jobs()
        .patch("digits", &parameters, &patch)
        .await
        .unwrap();
    let (code, _, error) = stage.call(&["submit", "-f", path(&file)]).await;
    assert_eq!((code, stage.replicas().await), (1, 5));
    for words in ["spec.workers.replicas", "autoscaler", "--force-conflicts"] {
        assert!(error.contains(words), "{error}");
    }
    let force = ["submit", "-f", path(&file), "--force-conflicts"];
    let (code, _, error) = stage.call(&force).await;
    assert_eq!((code, stage.replicas().await), (0, 4), "{error}");
}

async fn explain(stage: &Stage) {
    // Why it does not train.
    stage.unschedulable_pod().await;
    let condition = json!({"type": "Running", "status": "False", "reason": "Unschedulable",
        "message": "0 of 3 workers ready", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    stage
        .status(json!({"conditions": [condition], "startTime": "2026-01-01T00:00:00Z"}))
        .await;
    let (code, out, _) = stage.call(&["why", "digits"]).await;
    assert_eq!(code, 4);
    assert!(
        out.starts_with("Unschedulable") && out.contains("nvidia.com/gpu"),
        "{out}"
    );
    let (code, out, _) = stage.call(&["status", "digits", "-o", "json"]).await;
    assert_eq!(code, 0);
    let view: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(view["ranks"][0]["state"], "Unschedulable", "{out}");
    let (code, out, _) = stage.call(&["status", "-A"]).await;
    assert_eq!(code, 0);
    assert!(out.contains("ml         digits"), "{out}");
    let (code, out, error) = stage
        .call(&["report", "digits", "--file", "report.zip"])
        .await;
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("report.zip"), "{out}");
}

async fn end(stage: &Stage) {
    // It ends, and stays so.
    let failed = json!({"type": "Failed", "status": "True", "reason": "StartDeadlineExceeded",
        "message": "no GPU", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    stage.status(json!({"conditions": [failed]})).await;
    let (code, _, error) = stage.call(&["scale", "digits", "2"]).await;
    assert_eq!(code, 1);
    assert!(error.contains("stop digits"), "{error}");
    let (code, _, error) = stage.call(&["watch", "digits"]).await;
    assert_eq!(code, 1, "{error}");
    let (code, _, _) = stage.call(&["stop", "digits", "--dry-run"]).await;
    assert_eq!(code, 0);
    assert!(stage.jobs().get_opt("digits").await.unwrap().is_some());
    let (code, out, error) = stage.call(&["stop", "digits"]).await;
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("deleted"), "{out}");
    let (code, _, error) = stage.call(&["status", "digits"]).await;
    assert_eq!(code, 1);
    assert!(error.contains("kubectl roundhouse status"), "{error}");
}
