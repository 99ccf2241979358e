//! Reads from the API server, and from workers through its proxy.

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use roundhouse_api::TrainingJob;
use roundhouse_contract::{Membership, Progress, labels, ports};

const CALL_TIMEOUT: Duration = Duration::from_secs(15);
const WORKER_TIMEOUT: Duration = Duration::from_secs(2);

/// A cluster and a namespace of it.
pub(crate) struct Cluster {
    client: Client,
    namespace: String,
}

impl Cluster {
    pub(crate) async fn connect(namespace: Option<String>) -> anyhow::Result<Self> {
        let mut config = kube::Config::infer()
            .await
            .context("no cluster is configured: set KUBECONFIG or check `kubectl config view`")?;
        // The default retry can hold one call for minutes; here somebody waits for the answer.
        config.default_retry = false;
        config.connect_timeout = Some(CALL_TIMEOUT);
        config.read_timeout = Some(CALL_TIMEOUT);
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        Ok(Self {
            client: Client::try_from(config)?,
            namespace,
        })
    }

    /// The job, if there is one.
    pub(crate) async fn job(&self, name: &str) -> anyhow::Result<Option<TrainingJob>> {
        let jobs: Api<TrainingJob> = Api::namespaced(self.client.clone(), &self.namespace);
        match jobs.get_opt(name).await {
            Err(kube::Error::Api(status)) if status.code == 403 => {
                anyhow::bail!(
                    "you may not read TrainingJobs in {}: {}",
                    self.namespace,
                    status.message
                )
            }
            Ok(None) => {
                // A missing kind is a 404, too; listing tells the two apart.
                let nothing = ListParams::default().limit(1);
                jobs.list(&nothing)
                    .await
                    .context("TrainingJobs are not installed here: helm install roundhouse")?;
                Ok(None)
            }
            other => Ok(other?),
        }
    }

    /// The pod of node rank 0 in the newest generation.
    pub(crate) async fn first_worker(&self, job: &TrainingJob) -> anyhow::Result<Option<String>> {
        let uid = job.uid().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let selector = ListParams::default().labels(&format!("{}={uid}", labels::JOB_UID));
        let place = |pod: &Pod| {
            let text = pod.annotations().get(labels::MEMBERSHIP)?;
            Membership::parse(text).ok().flatten()
        };
        let all = pods.list(&selector).await?;
        let first = all
            .iter()
            .filter_map(|pod| Some((place(pod)?, pod.name_any())));
        let first = first.filter(|(place, _)| place.node_rank == 0);
        Ok(first
            .max_by_key(|(place, _)| place.generation)
            .map(|(_, name)| name))
    }

    /// What an agent answers, through the API server; `None` if it cannot be reached now.
    pub(crate) async fn ask(&self, pod: &str, path: &str) -> Option<String> {
        let port = ports::AGENT_HTTP;
        let path = format!(
            "/api/v1/namespaces/{}/pods/{pod}:{port}/proxy{path}",
            self.namespace
        );
        let request = http::Request::get(path).body(Vec::new()).ok()?;
        // A worker that ends in this moment may leave the API server's proxy without an answer.
        let answer = tokio::time::timeout(WORKER_TIMEOUT, self.client.request_text(request));
        answer.await.ok()?.ok()
    }

    /// Progress as a worker tells it now.
    pub(crate) async fn progress(&self, pod: &str) -> Option<Progress> {
        serde_json::from_str(&self.ask(pod, ports::PROGRESS_PATH).await?).ok()
    }

    /// Namespace, for messages.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }
}
