//! The environment of a test: an API server with the CRD, an operator that can be cut off after
//! its n-th write, and a kubelet that consists of status patches.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use roundhouse_api::{ConditionType, TrainingJob};
use roundhouse_contract::termination::Reason;
use roundhouse_tests::apiserver::{ApiServer, Version};
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};
use tempfile::TempDir;
use tracing_subscriber::EnvFilter;

pub(crate) use self::kubelet::{ended, restarted, running};
pub(crate) use self::network::Network;
pub(crate) use self::operator::{Operator, metric};
pub(crate) use self::operator_process::{OperatorProcess, program_of};

mod cut_off;
mod kubelet;
mod lease_check;
mod network;
mod operator;
mod operator_process;

pub(crate) const NAMESPACE: &str = "ml";
/// How long a test waits for a condition.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(2);

pub(crate) struct Environment {
    pub(crate) server: ApiServer,
    pub(crate) client: Client,
    pub(crate) directory: TempDir,
}

/// Writes the operators' log to standard error if `RUST_LOG` is set, for example to
/// `roundhouse_operator=debug`.
fn start_log() {
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = EnvFilter::from_default_env();
        let log = tracing_subscriber::fmt().with_env_filter(filter);
        // Another test of this process may have started it.
        let _ = log.with_writer(std::io::stderr).try_init();
    }
}

impl Environment {
    pub(crate) async fn new() -> Self {
        Self::with_version(Version::Usual).await
    }

    pub(crate) async fn with_version(version: Version) -> Self {
        start_log();
        let directory = TempDir::new().unwrap();
        let server = ApiServer::start_of(version, directory.path());
        let server = server.await.unwrap();
        let client = server.client("test").unwrap();
        let env = Self {
            server,
            client,
            directory,
        };
        for name in [NAMESPACE, "other"] {
            let namespace = json!({"metadata": {"name": name}});
            let namespaces: Api<Namespace> = Api::all(env.client.clone());
            let namespace = serde_json::from_value(namespace).unwrap();
            namespaces
                .create(&PostParams::default(), &namespace)
                .await
                .unwrap();
        }
        env.install_crd().await;
        env
    }

    /// Creates the CustomResourceDefinition of TrainingJob, and waits until it is served.
    pub(crate) async fn install_crd(&self) {
        let text = std::fs::read_to_string(
            roundhouse_tests::manifests::repository().join("crds/trainingjobs.yaml"),
        );
        let crd: CustomResourceDefinition = serde_saphyr::from_str(&text.unwrap()).unwrap();
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        crds.create(&PostParams::default(), &crd).await.unwrap();
        until("the kind is served", TIMEOUT, || async {
            let jobs = self.jobs(NAMESPACE);
            Ok(jobs.list(&ListParams::default()).await.ok())
        })
        .await
        .unwrap();
    }

    pub(crate) fn jobs(&self, namespace: &str) -> Api<TrainingJob> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn all_pods(&self, namespace: &str) -> Vec<Pod> {
        let all = self.pods(namespace).list(&ListParams::default()).await;
        all.unwrap().items
    }

    /// UIDs of all pods of the namespace, also of those that are terminating.
    pub(crate) async fn uids(&self, namespace: &str) -> Vec<Option<String>> {
        let all = self.all_pods(namespace).await;
        all.iter().map(ResourceExt::uid).collect()
    }

    /// UIDs of the pods that are not terminating.
    pub(crate) async fn uids_of_staying_pods(&self, namespace: &str) -> BTreeSet<String> {
        let mut pods = self.all_pods(namespace).await;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        pods.iter().filter_map(ResourceExt::uid).collect()
    }

    pub(crate) async fn apply(&self, namespace: &str, workers: u32) -> TrainingJob {
        self.create(namespace, job(workers)).await
    }

    pub(crate) async fn create(&self, namespace: &str, job: Value) -> TrainingJob {
        let job = serde_json::from_value(job).unwrap();
        self.jobs(namespace)
            .create(&PostParams::default(), &job)
            .await
            .unwrap()
    }

    pub(crate) async fn job(&self, namespace: &str) -> TrainingJob {
        self.jobs(namespace).get("digits").await.unwrap()
    }

    /// A user's merge patch of the job's spec.
    pub(crate) async fn edit(&self, spec: &Value) -> kube::Result<TrainingJob> {
        let patch = Patch::Merge(json!({"spec": spec}));
        let jobs = self.jobs(NAMESPACE);
        jobs.patch("digits", &PatchParams::default(), &patch).await
    }

    /// Waits until `status.state` of the job is this reason.
    pub(crate) async fn until_state(&self, namespace: &str, reason: &str) -> TrainingJob {
        let found = until(reason, TIMEOUT, || async {
            let job = self.job(namespace).await;
            let status = job.status.as_ref();
            let is = status.and_then(|status| status.state.as_deref()) == Some(reason);
            Ok(is.then_some(job))
        });
        match found.await {
            Ok(job) => job,
            Err(error) => panic!("{error}: {:#?}", self.job(namespace).await.status),
        }
    }

    /// Runs the kubelet until the job trains.
    pub(crate) async fn run_until_training(&self, namespace: &str) {
        until("the job trains", TIMEOUT, || async {
            self.run_kubelet(namespace, None).await;
            let status = self.job(namespace).await.status.unwrap_or_default();
            Ok(status.is_true(ConditionType::Running).then_some(()))
        })
        .await
        .unwrap();
    }

    /// Runs the kubelet until the job trains, and then until its workers have completed.
    pub(crate) async fn run_to_completion(&self, namespace: &str) {
        self.run_until_training(namespace).await;
        until("the job ends", TIMEOUT, || async {
            self.run_kubelet(namespace, Some((0, Reason::Completed)))
                .await;
            let status = self.job(namespace).await.status.unwrap();
            Ok(status.is_terminal().then_some(()))
        })
        .await
        .unwrap();
    }
}

/// A job of replicas of two pods, whose processes hold one state together.
pub(crate) fn job_of_large_replicas(replicas: u32) -> Value {
    let mut job = job(replicas);
    job["spec"]["workers"]["podsPerReplica"] = json!(2);
    job["spec"]["trainer"]["parallel"] = json!({"shard": "Zero1"});
    job
}

pub(crate) fn job(workers: u32) -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "digits"},
        "spec": {
            "workers": {"replicas": workers},
            "trainer": {
                "model": {"name": "mlp"}, "data": {"format": "idx"},
                "globalBatchSize": 8, "epochs": 1,
            },
        },
    })
}
