//! What every reconcile shares.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use roundhouse_planner::Pod;
use tokio::sync::SetOnce;

use crate::controller::events::Events;
use crate::controller::events::queue::EventQueue;
use crate::controller::slow_writes::SlowWrites;
use crate::controller::tenancy::Policies;
use crate::memory::JobMemories;
use crate::metrics::Metrics;
use crate::metrics::labels::Watched;
use crate::settings::Settings;
use crate::watch::cache::Cache;
use crate::watch::cordoned::Cordoned;
use crate::watch::lost_nodes::LostNodes;
use crate::watch::pod_groups::Groups;
use crate::watch::projection::OwnedObject;
use crate::watch::staleness::confirm::ClockTold;
use crate::watch::topology::Topology;

/// Clients, caches and memory that may be lost at any time.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The API server, for watches alone.
    pub watching: Client,
    /// The command line.
    pub settings: Settings,
    /// The metrics.
    pub metrics: Metrics,
    /// Pods of all jobs.
    pub pods: Cache<Pod>,
    /// Services of all jobs.
    pub services: Cache<OwnedObject>,
    /// NetworkPolicies of all jobs.
    pub network_policies: Cache<OwnedObject>,
    /// PodGroups of all jobs that have a gang scheduler.
    pub groups: Groups,
    /// Nodes on which nothing new is placed; empty when nodes are not watched.
    pub cordoned: Cordoned,
    /// Labels of nodes that jobs with a topology run on.
    pub topology: Topology,
    /// Nodes of pods that are not Ready, as far as these do not answer.
    pub lost_nodes: LostNodes,
    /// What is remembered of each job.
    pub memory: Arc<JobMemories>,
    /// Writes that go on beside the reconciles.
    pub slow_writes: SlowWrites,
    /// What the administrator lets jobs have.
    pub policies: Policies,
    /// Where events go.
    pub events: Events,
    /// Events that are to be told.
    pub event_queue: EventQueue,
    /// When it was last said that the clock is not that of the API server.
    pub clock_told: ClockTold,
    /// When all caches were filled for the first time.
    pub synced_at: SetOnce<Timestamp>,
    /// When this operator began to lead.
    pub led_since: SetOnce<Timestamp>,
}

impl Context {
    /// Of an operator that has just started.
    #[must_use]
    pub fn new(
        client: Client,
        watching: Client,
        metrics: Metrics,
        policies: Policies,
        slow_writes: SlowWrites,
        settings: Settings,
    ) -> Self {
        let memory = Arc::new(JobMemories::new(settings.pauses));
        let instance = std::env::var("HOSTNAME").ok();
        Self {
            events: Events::new(client.clone(), instance),
            event_queue: EventQueue::default(),
            client,
            watching,
            settings,
            metrics,
            pods: Cache::default(),
            services: Cache::default(),
            network_policies: Cache::default(),
            groups: Groups::default(),
            cordoned: Cordoned::default(),
            topology: Topology::default(),
            lost_nodes: LostNodes::default(),
            memory,
            slow_writes,
            policies,
            clock_told: ClockTold::default(),
            synced_at: SetOnce::new(),
            led_since: SetOnce::new(),
        }
    }

    /// Since when this operator has seen how the jobs are, and could do something about it.
    #[must_use]
    pub fn looks_after_jobs_since(&self) -> Option<Timestamp> {
        self.synced_at.get().max(self.led_since.get()).copied()
    }

    /// The watch that was not heard for too long, and for how long.
    #[must_use]
    pub fn silent(&self) -> Option<(Watched, Duration)> {
        let oldest = self.metrics.watch_ages.oldest();
        oldest.filter(|(_, age)| *age >= self.settings.patience.stale)
    }

    /// The watch of which the cache may lack what was decided elsewhere: it is silent, or broke off and has not caught up. And
    /// how long ago it was heard.
    #[must_use]
    pub fn stale(&self) -> Option<(Watched, Duration)> {
        self.silent().or_else(|| self.metrics.watch_ages.broken())
    }

    /// Whether all caches have been filled once.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced_at.get().is_some()
    }

    /// A cache has been filled: if it is the last one, jobs can be worked on.
    pub fn note_filled(&self) {
        let is_filled = self.pods.is_synced()
            && self.services.is_synced()
            && self.network_policies.is_synced()
            && self.policies.is_synced();
        if is_filled {
            // They are filled again after each gap.
            let _ = self.synced_at.set(Timestamp::now());
        }
    }
}
