//! Reads everything about a job: its object, pods and events, and the reports of its agents.

use std::collections::BTreeMap;
use std::fmt::Debug;

use anyhow::Context;
use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use roundhouse_api::TrainingJob;
use roundhouse_api::lenient::LenientJob;
use roundhouse_contract::{labels, ports};
use serde::de::DeserializeOwned;

use super::{Cluster, NOT_INSTALLED};
use crate::facts::metrics;
use crate::facts::worker::Worker;
use crate::facts::{AgentReport, Facts};
use crate::view::time_of;

/// Requests in flight at a time.
const AT_ONCE: usize = 16;
/// Most agents to poll, those of the lowest ranks. For other workers only the API server's data is
/// shown.
const MAX_ASKED: usize = 64;
/// Objects per page of a list, which limits the API server's memory for one request.
const PAGE: u32 = 250;
/// Most pods whose events are read, among those that are not ready.
const MAX_TROUBLED: usize = 8;

impl Cluster {
    /// The job with this name.
    ///
    /// # Errors
    /// The job does not exist, or the API server does not return it.
    pub(crate) async fn wanted_job(&self, name: &str) -> anyhow::Result<TrainingJob> {
        let job = self.job(name).await?;
        job.with_context(|| {
            format!(
                "there is no TrainingJob {name} in namespace {}: `kubectl roundhouse status` lists its jobs; \
                 give another namespace with -n",
                self.namespace()
            )
        })
    }

    /// All jobs of the namespace, or of all namespaces. Fields of a newer version that cannot be
    /// parsed are left out, so one newer job does not hide the others.
    ///
    /// # Errors
    /// The API server refuses the list, or the CRD is not installed.
    pub(crate) async fn jobs(&self, everywhere: bool) -> anyhow::Result<Vec<TrainingJob>> {
        let client = self.client.clone();
        let api: Api<LenientJob> = if everywhere {
            Api::all(client)
        } else {
            Api::namespaced(client, self.namespace())
        };
        match pages(&api, ListParams::default()).await {
            Ok(jobs) => jobs.iter().map(|job| Ok(job.whole()?)).collect(),
            Err(kube::Error::Api(status)) if status.code == 404 => anyhow::bail!(NOT_INSTALLED),
            Err(error) => Err(error).context("cannot list TrainingJobs"),
        }
    }

    /// All pods of a job, by the label with its UID.
    ///
    /// # Errors
    /// The API server refuses the list.
    pub(crate) async fn pods(&self, job: &TrainingJob) -> anyhow::Result<Vec<Pod>> {
        let uid = job.uid().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), self.namespace());
        let selector = ListParams::default().labels(&format!("{}={uid}", labels::JOB_UID));
        let listed = pages(&pods, selector).await;
        listed.context("cannot list the job's pods")
    }

    /// Everything about a job, without agents that do not answer and without events that the user
    /// may not read.
    ///
    /// # Errors
    /// The job does not exist, or the API server does not return the job or its pods.
    pub(crate) async fn facts(&self, name: &str) -> anyhow::Result<Facts> {
        Box::pin(self.facts_of(self.wanted_job(name).await?)).await
    }

    /// Everything about a job that was just read; see [`Self::facts`].
    ///
    /// # Errors
    /// The API server does not return the pods.
    pub(crate) async fn facts_of(&self, job: TrainingJob) -> anyhow::Result<Facts> {
        let pods = self.pods(&job).await?;
        let mut facts = Facts {
            job,
            pods,
            events: Vec::new(),
            reports: BTreeMap::new(),
            now: Timestamp::now(),
        };
        let workers = facts.workers();
        facts.reports = self.reports(&workers).await;
        facts.events = self.events(&facts, &workers).await;
        Ok(facts)
    }

    async fn reports(&self, workers: &[Worker]) -> BTreeMap<String, AgentReport> {
        let asked = workers
            .iter()
            .filter(|it| it.is_running && !it.is_unreachable);
        let asked: Vec<&Worker> = asked.take(MAX_ASKED).collect();
        let reports = stream::iter(asked).map(|worker| async move {
            let report = self.report_of(worker).await;
            (worker.pod.clone(), report)
        });
        reports.buffer_unordered(AT_ONCE).collect().await
    }

    async fn report_of(&self, worker: &Worker) -> AgentReport {
        let pod = &worker.pod;
        let (progress, restarts, text) = futures::join!(
            self.progress(pod),
            self.ask_json(pod, ports::RESTARTS_PATH, worker.nonce()),
            self.ask(pod, ports::METRICS_PATH, ""),
        );
        AgentReport {
            progress,
            restarts,
            metrics: metrics::parse(&text.unwrap_or_default()),
        }
    }

    async fn events(&self, facts: &Facts, workers: &[Worker]) -> Vec<Event> {
        let troubled = workers
            .iter()
            .filter(|it| !it.is_ready && it.phase != "Succeeded");
        let troubled: Vec<&str> = troubled
            .map(|it| it.pod.as_str())
            .take(MAX_TROUBLED)
            .collect();
        let pods = facts.pods.iter();
        let uids = pods
            .filter(|pod| troubled.contains(&pod.name_any().as_str()))
            .filter_map(ResourceExt::uid)
            .chain(facts.job.uid());
        let about = uids.map(|uid| format!("involvedObject.uid={uid}"));
        let found = stream::iter(about).map(|about| self.events_about(about));
        let mut events: Vec<Event> = found.buffer_unordered(AT_ONCE).concat().await;
        if let Some(about) = of_last_failure(facts) {
            let begun = facts.job.creation_timestamp().map(|it| it.0);
            let found = self.events_about(about).await.into_iter();
            // An earlier job with this name may have had a pod with the same name.
            events.extend(found.filter(|event| time_of(event) >= begun));
        }
        events.sort_by_key(time_of);
        events
    }

    /// Events about an object; none if the user may not read them.
    async fn events_about(&self, object: String) -> Vec<Event> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), self.namespace());
        let listed = events.list(&ListParams::default().fields(&object)).await;
        listed.map(|listed| listed.items).unwrap_or_default()
    }
}

/// Selector of the events about the pod that failed last, if the pod is gone. Kubernetes keeps
/// events for an hour.
fn of_last_failure(facts: &Facts) -> Option<String> {
    let worker = facts.status().last_failure?.worker;
    let is_gone = !facts.pods.iter().any(|pod| pod.name_any() == worker);
    is_gone.then(|| format!("involvedObject.kind=Pod,involvedObject.name={worker}"))
}

/// Reads all pages of a list.
async fn pages<K>(api: &Api<K>, selector: ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut selector = selector.limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&selector).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => selector = selector.continue_token(&token),
            None => return Ok(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response, Uri};
    use kube::client::Body;
    use kube::{Client, Config};
    use serde_json::json;

    use super::*;

    /// An API server with two pages of one job each. A newer version wrote the first job.
    async fn serve(request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let is_second = query.contains("continue=next");
        assert!(query.contains("limit=250"), "{query}");
        let (name, mode, next) = if is_second {
            ("b", "Restart", "")
        } else {
            ("a", "Sharded", "next")
        };
        let list = json!({
            "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJobList", "metadata": {"continue": next},
            "items": [{
                "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
                "spec": {"workers": {"replicas": 3}, "elastic": {"mode": mode}},
            }],
        });
        Ok(Response::new(Body::from(list.to_string().into_bytes())))
    }

    #[tokio::test]
    async fn jobs_of_newer_versions_are_listed_across_pages() {
        let cluster = Cluster {
            client: Client::new(tower::service_fn(serve), "ml"),
            config: Config::new(Uri::from_static("http://127.0.0.1:1")),
            namespace: "ml".to_owned(),
            asked: None,
        };
        let jobs = cluster.jobs(true).await.unwrap();
        let read: Vec<_> = jobs
            .iter()
            .map(|job| (job.name_any(), job.spec.workers.replicas))
            .collect();
        assert_eq!(read, [("a".to_owned(), 3), ("b".to_owned(), 3)]);
    }
}
