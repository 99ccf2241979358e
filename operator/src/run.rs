//! Starts all parts of the operator and runs them until it is asked to stop.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use prometheus::Registry;
use roundhouse_api::shallow;
use roundhouse_planner::JobIdentity;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tracing::Instrument;

use self::ending::{of_work, shutdown_signal, stopped_late};
use self::following::while_following;
pub use self::logs::init_logging;
use crate::agents;
use crate::controller::context::Context;
use crate::controller::driver::reconcile;
use crate::controller::events::Events;
use crate::controller::events::queue::publish_all;
use crate::controller::leaving;
use crate::controller::priority::lane;
use crate::controller::resources::{network_policy, service};
use crate::controller::slow_writes::SlowWrites;
use crate::controller::tenancy::{Policies, PolicyError};
use crate::http;
use crate::job::JobName;
use crate::metrics::Metrics;
use crate::runtime::api::metered::metered;
use crate::runtime::leader_election::Leadership;
use crate::runtime::leader_election::fence::fenced;
use crate::runtime::leader_election::keep::Candidate;
use crate::runtime::queue::debounce::debounce;
use crate::runtime::queue::runner::dispatch;
use crate::runtime::tasks::{Ended as TaskEnded, Tasks};
use crate::settings::Settings;
use crate::watch::client::listening;
use crate::watch::lost_nodes;
use crate::watch::namespaces::watch_namespaces;
use crate::watch::pod_group_kinds::{coscheduling, kubernetes, volcano};
use crate::watch::pod_groups::watch::watch_groups;
use crate::watch::projection::OwnedObject;
use crate::watch::streams::{
    Named, watch_jobs, watch_network_policies, watch_nodes, watch_pods, watch_services,
};
use crate::watch::wake::{Cause, Wake};
use crate::watch::watches::Watches;
use roundhouse_api::lenient::LenientJob;

mod ending;
mod following;
mod logs;

/// How long a stopping operator waits until its last events are published.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// Why the operator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No cluster is configured.
    #[error("no cluster: {0}; set KUBECONFIG, or run it in a pod with a service account")]
    Config(#[from] kube::config::InferConfigError),
    /// The client of the API server cannot be created.
    #[error("no client for the API server: {0}")]
    Client(#[from] kube::Error),
    /// The port of the HTTP server cannot be used.
    #[error("cannot listen on {address}: {source}; give another --http-address")]
    Listen { address: String, source: io::Error },
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The name of a metric is taken.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The Lease is lost, so another operator may lead by now.
    #[error(
        "lost the lease {0:?}: it was not renewed in time, or another operator has taken it; this operator restarts"
    )]
    LeaseLost(String),
    /// A task that runs as long as the operator has ended.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// The operator cannot start, or one of its tasks ended.
pub async fn run(settings: Settings) -> Result<(), RunError> {
    let mut config = kube::Config::infer().await?;
    // The client's own retry can hold one call for minutes. `calls` has a deadline instead.
    config.default_retry = false;
    config.connect_timeout = Some(crate::runtime::api::calls::DEADLINE);
    let client = Client::try_from(config)?;
    run_with(client, settings, Registry::new(), shutdown_signal()).await
}

/// Runs with a given client until `stop` is done. `registry` receives the metrics.
///
/// # Errors
/// The operator cannot start, or one of its tasks ended.
pub async fn run_with(
    client: Client,
    settings: Settings,
    registry: Registry,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) -> Result<(), RunError> {
    let policies = Policies::of_settings(&settings)?;
    let metrics = Metrics::new(&registry, Arc::new(Instant::now))?;
    let client = shallow(metered(client, metrics.api.clone()));
    let lease = settings
        .lease
        .clone()
        .map(|name| Candidate::of(&client, &settings, name));
    let leadership = lease.as_ref().map_or_else(
        || Arc::new(Leadership::alone()),
        |candidate| Arc::clone(&candidate.leadership),
    );
    let watching = listening(
        client.clone(),
        metrics.watch_ages.clone(),
        settings.patience,
    );
    let watches = Watches::new(watching, &metrics, &settings);
    let client = fenced(client, Arc::clone(&leadership));
    let (wake, wakes) = channel(4_096);
    let slow_writes = SlowWrites::new(wake.clone());
    let context = Context::new(&client, metrics, policies, slow_writes, settings);
    let context = Arc::new(context);
    let settings = &context.settings;
    let listener = http::listen(settings.http_address).await;
    let listener = listener.map_err(|source| RunError::Listen {
        address: settings.http_address.to_string(),
        source,
    })?;
    // The tasks end with this function, however it ends.
    let mut background = Tasks::default();
    let router = http::router(
        Arc::clone(&context.caches),
        Arc::clone(&context.staleness),
        registry,
    );
    let server = http::serve(listener, router).map(drop);
    background.spawn("http", server);
    let (store, writer) = reflector::store();
    context.policies.set_jobs(store.clone());
    let others = Others {
        client: &client,
        watches: &watches,
        jobs: &store,
        leadership: &leadership,
        wake: &wake,
    };
    others.watch(&mut background, &context);
    publish_and_poll(&mut background, &context, &client, &wake);
    let (memories, jobs) = (Arc::clone(&context.memories), context.metrics.jobs.clone());
    let queue = context.metrics.queue.clone();
    let note = move |event: &Event<JobIdentity>| {
        if let Event::Delete(job) = event {
            queue.forget(&JobName::from(job));
        }
        jobs.apply(event);
        memories.apply(event);
    };
    let jobs = watch_jobs(watches, writer, note, wake);
    background.spawn("watch of trainingjobs", jobs);
    if let Some(candidate) = &lease {
        background.spawn("lease", candidate.clone().keep());
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "the operator runs");
    let stop = stop.shared();
    let working = work(&context, &leadership, &store, wakes, stop.clone());
    let outcome = tokio::select! {
        ended = AssertUnwindSafe(working).catch_unwind() => of_work(ended, stop.peek().is_some()).map_err(RunError::from),
        ended = background.ended() => Err(ended.into()),
        () = leadership.lost() => Err(RunError::LeaseLost(settings.lease.clone().unwrap_or_default())),
        () = stopped_late(stop.clone()) => {
            tracing::warn!("shutdown timeout: stopping during a reconcile; the next leader continues");
            Ok(())
        }
    };
    // An operator that is asked to stop does not restart itself.
    let is_asked = stop.peek().is_some();
    let outcome = match outcome {
        Err(RunError::LeaseLost(_)) if is_asked => Ok(()),
        outcome => outcome,
    };
    if outcome.is_ok() {
        context.event_queue.drain(LAST_EVENTS).await;
    }
    context.slow_writes.stop();
    context.metrics.work.lead(false);
    // From here on the operator writes nothing but the Lease.
    drop(background);
    if let (Some(candidate), Ok(())) = (lease, &outcome) {
        candidate.release().await;
    }
    tracing::info!("the operator stops");
    outcome
}

/// Starts the tasks beside the reconciles that publish events and poll the workers' agents.
fn publish_and_poll(
    background: &mut Tasks,
    context: &Context,
    client: &Client,
    wake: &Sender<Wake>,
) {
    let events = Events::new(client.clone(), std::env::var("HOSTNAME").ok());
    let queue = Arc::clone(&context.event_queue);
    let publishing = publish_all(queue, events, context.metrics.work.clone());
    background.spawn("events", publishing);
    let polls = agents::workers::poll(Arc::clone(&context.memories), wake.clone());
    background.spawn("restarts", polls);
    let polls = agents::progress::poll(Arc::clone(&context.memories), wake.clone());
    background.spawn("progress", polls);
}

/// Reconciles the jobs that are woken, until `stop` is done.
async fn work(
    context: &Arc<Context>,
    leadership: &Leadership,
    jobs: &Store<LenientJob>,
    wakes: Receiver<Wake>,
    stop: impl Future<Output = ()>,
) {
    let wakes = ReceiverStream::new(wakes);
    let known =
        |JobName { namespace, name }: &JobName| jobs.get(&ObjectRef::new(name).within(namespace));
    // No job is reconciled before the caches are filled and this operator leads.
    let wakes = async {
        context.caches.filled().await;
        let (wakes, all) = while_following(wakes, leadership, jobs).await;
        context.metrics.work.lead(true);
        let _ = context.led_since.set(Timestamp::now());
        // Wakes that arrived while another operator led were never due here.
        let wakes = stream::iter(all).chain(wakes).inspect(|wake: &Wake| {
            context.metrics.queue.due(&wake.job, Duration::ZERO);
        });
        debounce(wakes.map(|wake| (wake.job, wake.cause)))
    };
    let wakes = wakes.flatten_stream().map(|(job, cause)| {
        let lane = lane(cause, known(&job).as_deref());
        (job, lane)
    });
    let ready = jobs.wait_until_ready().map(|_| ());
    let of_due = |job: &JobName| lane(Cause::Other, known(job).as_deref());
    let reconcile_one = |job: JobName| {
        let (known, context) = (known(&job), Arc::clone(context));
        let JobName { namespace, name } = job.clone();
        let attempt = async move {
            let Some(known) = known else {
                context.metrics.queue.forget(&job);
                return None;
            };
            reconcile(known, context).await
        };
        attempt.instrument(tracing::info_span!("reconcile", namespace, job = name))
    };
    let num_slots = usize::from(context.settings.concurrency);
    dispatch(num_slots, wakes, ready, stop, of_due, reconcile_one).await;
}

/// What the watches of all kinds but the jobs need.
struct Others<'a> {
    client: &'a Client,
    watches: &'a Watches,
    jobs: &'a Store<LenientJob>,
    leadership: &'a Arc<Leadership>,
    wake: &'a Sender<Wake>,
}

impl Others<'_> {
    fn watch(&self, background: &mut Tasks, context: &Context) {
        let scrapers = &context.settings.worker_metrics_from;
        let caches = || Arc::clone(&context.caches);
        let (watches, wake) = (|| self.watches.clone(), || self.wake.clone());
        let pods = watch_pods(watches(), caches(), wake());
        background.spawn("watch of pods", pods);
        let services = watch_services(watches(), caches(), service::is_as_built, wake());
        background.spawn("watch of services", services);
        let (deleted, of_deleted) = channel(leaving::AT_ONCE);
        let ours = scrapers.clone();
        let is_as_built = move |live: &NetworkPolicy| network_policy::is_as_built(live, &ours);
        let note = move |event: &Event<Named<OwnedObject>>| leaving::note(event, &deleted);
        let policies = watch_network_policies(watches(), caches(), is_as_built, note, wake());
        background.spawn("watch of networkpolicies", policies);
        let leadership = || Arc::clone(self.leadership);
        let (client, scrapers) = (self.client.clone(), scrapers.clone());
        let leaving = leaving::protect(client, caches(), scrapers, leadership(), of_deleted);
        background.spawn("networkpolicies of workers that leave", leaving);
        let groups = watch_groups::<coscheduling::PodGroup>(watches(), caches(), wake());
        background.spawn("watch of podgroups of Coscheduling", groups);
        let groups = watch_groups::<volcano::PodGroup>(watches(), caches(), wake());
        background.spawn("watch of podgroups of Volcano", groups);
        let groups = watch_groups::<kubernetes::PodGroup>(watches(), caches(), wake());
        background.spawn("watch of podgroups of Kubernetes", groups);
        if context.settings.watch_nodes {
            background.spawn("watch of nodes", watch_nodes(watches(), caches()));
            let (nodes, terms) = (Api::all(self.client.clone()), context.settings.lost_nodes);
            let lost = lost_nodes::pull::pull(nodes, caches(), terms, leadership(), wake());
            background.spawn("lost nodes", lost);
        }
        if let Some(namespaces) = context.policies.namespaces() {
            let (namespaces, jobs) = (Arc::clone(namespaces), self.jobs.clone());
            let namespaces = watch_namespaces(watches(), namespaces, caches(), jobs, wake());
            background.spawn("watch of namespaces", namespaces);
        }
    }
}
