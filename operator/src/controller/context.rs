//! What the driver of all reconciles holds: each step with its own handles, and what the driver
//! itself reads.

use std::sync::Arc;

use jiff::Timestamp;
use kube::Client;
use tokio::sync::SetOnce;

use crate::controller::apply::Applier;
use crate::controller::apply::writes::ObjectWriter;
use crate::controller::events::queue::EventQueue;
use crate::controller::observe::Observer;
use crate::controller::report::Reporter;
use crate::controller::slow_writes::SlowWrites;
use crate::controller::tenancy::Policies;
use crate::memory::JobMemories;
use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::watch::caches::Caches;
use crate::watch::staleness::Staleness;
use crate::watch::topology::Topology;

/// The steps of a reconcile, and the state that they share. All of it may be lost at any time.
pub struct Context {
    pub observer: Observer,
    /// Whether the caches are too old to act on.
    pub staleness: Arc<Staleness>,
    pub applier: Applier,
    pub reporter: Reporter,
    pub settings: Arc<Settings>,
    pub metrics: Metrics,
    pub caches: Arc<Caches>,
    /// What is remembered of each job.
    pub memories: Arc<JobMemories>,
    /// Labels of the nodes that jobs with a topology run on.
    pub topology: Topology,
    /// What the administrator lets jobs have.
    pub policies: Arc<Policies>,
    /// Writes that continue beside the reconciles.
    pub slow_writes: Arc<SlowWrites>,
    /// Events that wait to be published.
    pub event_queue: Arc<EventQueue>,
    /// When this operator began to lead.
    pub led_since: SetOnce<Timestamp>,
}

impl Context {
    /// Of an operator that has just started.
    #[must_use]
    pub fn new(
        client: &Client,
        metrics: Metrics,
        policies: Policies,
        slow_writes: SlowWrites,
        settings: Settings,
    ) -> Self {
        let (settings, policies) = (Arc::new(settings), Arc::new(policies));
        let caches = Arc::new(Caches::new(policies.namespaces().cloned()));
        let memories = Arc::new(JobMemories::new(settings.pauses));
        let topology = Topology::new(client.clone(), settings.watch_nodes);
        let staleness = Staleness::new(
            client.clone(),
            Arc::clone(&memories),
            &metrics,
            settings.patience,
        );
        let (slow_writes, event_queue) = (Arc::new(slow_writes), Arc::default());
        let writer = ObjectWriter::new(client.clone(), Arc::clone(&memories));
        Self {
            observer: Observer {
                caches: Arc::clone(&caches),
                memories: Arc::clone(&memories),
                topology: topology.clone(),
                lost_nodes: settings.lost_nodes,
                lost_node_grace: settings.lost_node_grace(),
            },
            staleness: Arc::new(staleness),
            applier: Applier {
                writer: writer.clone(),
                slow_writes: Arc::clone(&slow_writes),
                topology: topology.clone(),
                work: metrics.work.clone(),
                settings: Arc::clone(&settings),
            },
            reporter: Reporter {
                writer,
                slow_writes: Arc::clone(&slow_writes),
                events: Arc::clone(&event_queue),
                jobs: metrics.jobs.clone(),
            },
            settings,
            metrics,
            caches,
            memories,
            topology,
            policies,
            slow_writes,
            event_queue,
            led_since: SetOnce::new(),
        }
    }

    /// Since when this operator has seen the jobs, and could do something about them.
    #[must_use]
    pub fn looks_after_jobs_since(&self) -> Option<Timestamp> {
        self.caches.filled_at().max(self.led_since.get().copied())
    }
}
