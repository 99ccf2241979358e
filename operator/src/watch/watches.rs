//! How a watch begins, and what the operator records when it breaks.

use k8s_openapi::NamespaceResourceScope;
use kube::runtime::watcher::{self, Config as WatchConfig};
use kube::{Api, Client, Resource};
use roundhouse_contract::labels;

use crate::metrics::Metrics;
use crate::metrics::labels::Watched;
use crate::metrics::watch_ages::WatchAges;
use crate::metrics::work::Work;
use crate::settings::Settings;
use crate::watch::client::WatchTimeouts;

/// Jobs in one answer of a list. The client keeps the text of an answer until it has parsed it, and
/// a job has up to 1.5 MB.
const PAGE_OF_JOBS: u32 = 50;
/// Other objects in one answer of a list. A user who may create such objects can give them the
/// operator's labels and as much text as a job has.
const PAGE: u32 = 100;

/// The client of the watches, and the metrics of their health.
#[derive(Clone)]
pub(crate) struct Watches {
    /// The client that only watches use.
    pub(crate) client: Client,
    namespace: Option<String>,
    timeouts: WatchTimeouts,
    ages: WatchAges,
    work: Work,
}

impl Watches {
    pub(crate) fn new(client: Client, metrics: &Metrics, settings: &Settings) -> Self {
        Self {
            client,
            namespace: settings.namespace.clone(),
            timeouts: settings.patience,
            ages: metrics.watch_ages.clone(),
            work: metrics.work.clone(),
        }
    }

    /// All objects of a kind, or those of the one namespace that the operator watches.
    pub(crate) fn objects<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// The watch of a kind begins. Its age counts from here, whether the API server answers or not.
    pub(crate) fn begin(&self, kind: Watched) -> WatchConfig {
        self.ages.received(kind);
        let page = match kind {
            Watched::TrainingJobs => PAGE_OF_JOBS,
            _ => PAGE,
        };
        WatchConfig::default()
            .timeout(self.timeouts.watch)
            .page_size(page)
    }

    /// As [`begin`](Self::begin), for a kind of which the operator wants only its own objects.
    pub(crate) fn begin_own(&self, kind: Watched) -> WatchConfig {
        let ours = format!("{}={}", labels::MANAGED_BY, labels::FIELD_MANAGER);
        self.begin(kind).labels(&ours)
    }

    /// The cache of a kind has everything that the API server has.
    pub(crate) fn caught_up(&self, kind: Watched) {
        self.ages.catch_up(kind);
    }

    /// A watch broke, and begins again. Until it has caught up, the operator asks the API server
    /// before it deletes anything.
    pub(crate) fn broke(&self, kind: Watched, error: &watcher::Error) {
        self.work.watch_broke(kind);
        self.ages.break_off(kind);
        let resource = kind.as_str();
        tracing::warn!(%error, resource, "a watch broke; the operator restarts it");
    }
}
