//! The API server, its objects, and calls of the plugin.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use roundhouse_api::TrainingJob;
use roundhouse_tests::apiserver::ApiServer;
use roundhouse_tests::cluster::until;
use roundhouse_tests::manifests;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const NAMESPACE: &str = "ml";
const SOON: Duration = Duration::from_secs(30);

/// An API server with the CRD and a namespace, and a directory with a kubeconfig and files.
pub(crate) struct Environment {
    _server: ApiServer,
    pub(crate) client: Client,
    directory: TempDir,
}

/// The result of a call: exit code, standard output, standard error.
pub(crate) type Output = (i32, String, String);

impl Environment {
    pub(crate) async fn new() -> Self {
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
        let environment = Self {
            _server: server,
            client,
            directory,
        };
        until("the kind is served", SOON, || async {
            Ok(environment.jobs().list(&ListParams::default()).await.ok())
        })
        .await
        .unwrap();
        environment
    }

    pub(crate) fn jobs(&self) -> Api<TrainingJob> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(crate) async fn replicas(&self) -> u32 {
        self.jobs()
            .get("digits")
            .await
            .unwrap()
            .spec
            .workers
            .replicas
    }

    pub(crate) fn file(&self, text: &str) -> PathBuf {
        let path = self.directory.path().join("job.yaml");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Calls the plugin in a thread, so that the client's tasks continue.
    pub(crate) async fn call(&self, arguments: &[&str]) -> Output {
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

    pub(crate) async fn status(&self, status: Value) {
        let patch = json!({"status": status});
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
        self.jobs()
            .patch_status("digits", &parameters, &patch)
            .await
            .unwrap();
    }

    /// Creates a pod of the job for which the scheduler finds no node.
    pub(crate) async fn unschedulable_pod(&self) {
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
