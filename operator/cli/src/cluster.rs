//! The connection to a cluster, with kubectl's options. The modules below read and write its
//! objects.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use futures::{AsyncRead, AsyncReadExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config, ResourceExt};
use roundhouse_api::lenient::LenientJob;
use roundhouse_api::{TrainingJob, shallow};
use roundhouse_contract::{Action, Membership, Progress, labels, ports};
use serde::de::DeserializeOwned;

mod apply;
mod logs;
mod read;
mod versions;
mod write;

pub(crate) use logs::targets;
pub(crate) use write::DryRun;

const CALL_TIMEOUT: Duration = Duration::from_secs(15);
const NOT_INSTALLED: &str = "TrainingJobs are not installed here: install the chart with \
    `helm upgrade --install roundhouse charts/roundhouse`";
const WORKER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest accepted answer of an agent, in bytes. Metrics of a worker with eight processes are 200
/// KB.
const MAX_ANSWER: u64 = 8 << 20;

/// The cluster and the namespace, as kubectl's options name them.
#[derive(Args, Debug)]
pub(crate) struct Place {
    /// Namespace of the job. Default: the namespace of the context.
    #[arg(short, long, global = true)]
    namespace: Option<String>,
    /// Context of the kubeconfig. Default: the current one.
    #[arg(long, global = true)]
    context: Option<String>,
    /// Path of the kubeconfig. Default: the value of KUBECONFIG, else ~/.kube/config.
    #[arg(long, global = true)]
    kubeconfig: Option<PathBuf>,
}

impl Place {
    async fn config(&self) -> anyhow::Result<Config> {
        let Self {
            namespace: _,
            context,
            kubeconfig,
        } = self;
        let options = KubeConfigOptions {
            context: context.clone(),
            ..KubeConfigOptions::default()
        };
        let words = |error: KubeconfigError| error.to_string();
        let config = match (kubeconfig, context) {
            (Some(path), _) => match Kubeconfig::read_from(path) {
                Ok(file) => Config::from_custom_kubeconfig(file, &options).await,
                Err(error) => Err(error),
            }
            .map_err(words),
            (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(words),
            // The error says first that this is not a pod, which is usual. Its source says why
            // there is no kubeconfig.
            (None, None) => Config::infer().await.map_err(|error| {
                let source = error.source().map(ToString::to_string);
                source.unwrap_or_else(|| error.to_string())
            }),
        };
        // The text already contains all causes.
        config.map_err(|words| {
            anyhow!(
                "no cluster is configured: {words}. Set KUBECONFIG, or check `kubectl config view`. \
                 A job of `run --local --dir DIR` is in no cluster: its terminal, DIR/logs and \
                 `kubectl-roundhouse ui --local DIR` show it"
            )
        })
    }
}

/// A client of a cluster, with the namespace to use.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    config: Config,
    namespace: String,
    /// The namespace from the option -n.
    asked: Option<String>,
}

impl Cluster {
    pub(crate) async fn connect(place: &Place) -> anyhow::Result<Self> {
        let mut config = place.config().await?;
        // The default retry can delay a call for minutes, and the user waits for the answer.
        config.default_retry = false;
        config.connect_timeout = Some(CALL_TIMEOUT);
        config.read_timeout = Some(CALL_TIMEOUT);
        let asked = place.namespace.clone();
        let namespace = asked.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        Ok(Self {
            client: shallow(Client::try_from(config.clone())?),
            config,
            namespace,
            asked,
        })
    }

    /// The job, if it exists. Fields of a newer version that cannot be parsed are left out.
    pub(crate) async fn job(&self, name: &str) -> anyhow::Result<Option<TrainingJob>> {
        let jobs: Api<LenientJob> = Api::namespaced(self.client.clone(), &self.namespace);
        match jobs.get_opt(name).await {
            Err(kube::Error::Api(status)) if status.code == 403 => {
                anyhow::bail!(
                    "you may not read TrainingJobs in {}: {}",
                    self.namespace,
                    status.message
                )
            }
            Ok(None) => {
                // A missing CRD is a 404, too; only then the list fails as well.
                let one = ListParams::default().limit(1);
                jobs.list(&one).await.context(NOT_INSTALLED)?;
                Ok(None)
            }
            other => Ok(other?.map(|job| job.whole()).transpose()?),
        }
    }

    /// The pod of node rank 0 in the newest generation.
    pub(crate) async fn first_worker(&self, job: &TrainingJob) -> anyhow::Result<Option<String>> {
        Ok(first(&self.pods(job).await?))
    }

    /// Requests a path of an agent through the API server's proxy. `None` if the agent is
    /// unreachable or refuses. `nonce` is the nonce of the worker's membership document; an empty
    /// one is not sent.
    pub(crate) async fn ask(&self, pod: &str, path: &str, nonce: &str) -> Option<String> {
        let port = ports::AGENT_HTTP;
        let path = format!(
            "/api/v1/namespaces/{}/pods/{pod}:{port}/proxy{path}",
            self.namespace
        );
        let mut request = http::Request::get(path);
        if !nonce.is_empty() {
            request = request.header(ports::NONCE_HEADER, nonce);
        }
        let request = request.body(Vec::new()).ok()?;
        let read = async {
            let answer = self.client.request_stream(request).await.ok()?;
            whole(answer, MAX_ANSWER).await
        };
        // If the worker ends during the request, the proxy may never answer.
        tokio::time::timeout(WORKER_TIMEOUT, read).await.ok()?
    }

    /// Requests a path of an agent and parses the answer as JSON.
    async fn ask_json<T: DeserializeOwned>(&self, pod: &str, path: &str, nonce: &str) -> Option<T> {
        serde_json::from_str(&self.ask(pod, path, nonce).await?).ok()
    }

    /// The progress that a worker's agent reports now.
    pub(crate) async fn progress(&self, pod: &str) -> Option<Progress> {
        self.ask_json(pod, ports::PROGRESS_PATH, "").await
    }

    /// The same cluster with another namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..self.clone()
        }
    }

    /// The namespace that the user gave with -n, if any.
    pub(crate) fn asked_namespace(&self) -> Option<&str> {
        self.asked.as_deref()
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// Reads a text of at most `most` bytes. `None` if it is longer, because a part of it could be
/// misleading.
async fn whole(text: impl AsyncRead, most: u64) -> Option<String> {
    let mut read = String::new();
    let text = std::pin::pin!(text);
    let number = text.take(most + 1).read_to_string(&mut read).await.ok()?;
    (number as u64 <= most).then_some(read)
}

/// The pod of node rank 0 in the newest generation, without workers that leave.
fn first(pods: &[Pod]) -> Option<String> {
    let place = |pod: &Pod| {
        let text = pod.annotations().get(labels::MEMBERSHIP)?;
        Membership::parse(text).ok().flatten()
    };
    let stay = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    stay.filter_map(|pod| Some((place(pod)?, pod)))
        .filter(|(place, _)| place.action == Action::Join && place.node_rank == 0)
        .max_by_key(|(place, _)| place.generation)
        .map(|(_, pod)| pod.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, generation: u64, action: &str, node_rank: u32, deleted: bool) -> Pod {
        let document = serde_json::json!({
            "generation": generation, "action": action, "nodeRank": node_rank, "nodes": 2,
            "procsPerWorker": 1, "master": {"address": "10.0.0.1", "port": 1}, "members": "m",
            "incarnation": {"podUid": "u", "restarts": 0}, "issuedAt": "1970-01-01T00:00:00Z",
        });
        let at = deleted.then_some("1970-01-01T00:00:00Z");
        let pod = serde_json::json!({"metadata": {
            "name": name, "annotations": {labels::MEMBERSHIP: document.to_string()},
            "deletionTimestamp": at,
        }});
        serde_json::from_value(pod).unwrap()
    }

    #[tokio::test]
    async fn missing_kubeconfig_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place {
            namespace: None,
            context: None,
            kubeconfig: Some(dir.path().join("missing")),
        };
        let error = place.config().await.unwrap_err();
        let words = format!("{error:#}");
        assert!(words.starts_with("no cluster is configured"), "{words}");
        assert!(
            words.contains("missing") && words.contains("KUBECONFIG"),
            "{words}"
        );
        assert!(words.contains("ui --local DIR"), "{words}");
        assert_eq!(words.matches("No such file").count(), 1, "{words}");
    }

    #[tokio::test]
    async fn too_long_answer_is_none() {
        assert_eq!(whole(&b"abc"[..], 3).await.as_deref(), Some("abc"));
        assert_eq!(whole(&b"abcd"[..], 3).await, None);
    }

    #[test]
    fn first_worker_is_a_member_of_the_newest_generation() {
        let pods = [
            pod("old", 1, "Join", 0, false),
            pod("first", 2, "Join", 0, false),
            pod("second", 2, "Join", 1, false),
            pod("leaves", 2, "Leave", 0, false),
            pod("gone", 3, "Join", 0, true),
        ];
        assert_eq!(first(&pods).as_deref(), Some("first"));
        assert_eq!(first(&pods[3..]), None);
    }
}
