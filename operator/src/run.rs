//! Puts everything together and runs until it is told to stop.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt, stream};
use kube::Client;
use kube::runtime::controller::{Config as ControllerConfig, Controller, Error as Ended};
use kube::runtime::reflector::{self, ObjectRef};
use prometheus::Registry;
use roundhouse_api::TrainingJob;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;

use self::ending::{of_controller, shutdown_signal, stopped_late};
use self::following::while_following;
pub use self::logs::init_logging;
use crate::coalesce::coalesce;
use crate::context::Context;
use crate::driver::{after_error, reconcile};
use crate::gangs::{coscheduling, volcano};
use crate::groups::watch::watch_groups;
use crate::heard::listening;
use crate::http;
use crate::lead::Leadership;
use crate::lead::fence::fenced;
use crate::lead::keep::Candidate;
use crate::lost_nodes::LostNodes;
use crate::making::Making;
use crate::metered::metered;
use crate::metrics::Metrics;
use crate::policies::namespaces::watch_namespaces;
use crate::policies::{Policies, PolicyError};
use crate::progress::Progress;
use crate::restarts::Restarts;
use crate::settings::Settings;
use crate::tasks::{Ended as TaskEnded, Tasks};
use crate::watches::{watch_jobs, watch_network_policies, watch_nodes, watch_pods, watch_services};

mod ending;
mod following;
mod logs;

/// Why the operator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No cluster.
    #[error("no cluster: {0}; set KUBECONFIG, or run it in a pod with a service account")]
    Config(#[from] kube::config::InferConfigError),
    /// The client cannot be made.
    #[error("no client for the API server: {0}")]
    Client(#[from] kube::Error),
    /// The port cannot be used.
    #[error("cannot listen on {address}: {source}; give another --http-address")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A metric's name is taken.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// Another operator may lead by now.
    #[error(
        "the lease {0:?} is lost: it was not renewed in time, or another operator has it; this one starts anew"
    )]
    LeaseLost(String),
    /// What runs for as long as the operator does has ended.
    #[error(transparent)]
    Task(#[from] TaskEnded),
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// It cannot start, or one of its tasks ended.
pub async fn run(settings: Settings) -> Result<(), RunError> {
    let mut config = kube::Config::infer().await?;
    // Its retry can hold one call for minutes; `calls` has a deadline.
    config.default_retry = false;
    config.connect_timeout = Some(crate::calls::DEADLINE);
    let client = Client::try_from(config)?;
    run_with(client, settings, Registry::new(), shutdown_signal()).await
}

/// Runs with a given client until `stop` is done. Its metrics go to `registry`.
///
/// # Errors
/// It cannot start, or one of its tasks ended.
pub async fn run_with(
    client: Client,
    settings: Settings,
    registry: Registry,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) -> Result<(), RunError> {
    let policies = Policies::read(settings.policy_file.as_deref())?;
    let metrics = Metrics::new(&registry, Arc::new(Instant::now))?;
    let client = metered(client, metrics.api.clone());
    let lease = settings
        .lease
        .clone()
        .map(|name| Candidate::of(&client, &settings, name));
    let leadership = lease.as_ref().map_or_else(
        || Arc::new(Leadership::alone()),
        |candidate| Arc::clone(&candidate.leadership),
    );
    let watching = listening(client.clone(), metrics.heard.clone(), settings.patience);
    let client = fenced(client, Arc::clone(&leadership));
    let (wake, wakes) = channel(4_096);
    let making = Making::new(wake.clone());
    let context = Context::new(client, watching, metrics, policies, making, settings);
    let context = Arc::new(context);
    let settings = &context.settings;
    let listener = http::listen(settings.http_address).await;
    let listener = listener.map_err(|source| RunError::Listen {
        address: settings.http_address.to_string(),
        source,
    })?;
    // They end with this function, however it ends.
    let mut background = Tasks::default();
    let server = axum::serve(listener, http::router(Arc::clone(&context), registry));
    background.spawn("http", async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "http");
        }
    });
    watch_all(&mut background, &context, &leadership, &wake);
    let restarts = Restarts::pull(Arc::clone(&context), wake.clone());
    background.spawn("restarts", restarts);
    let (store, writer) = reflector::store();
    context.policies.look_at(store.clone());
    let jobs = watch_jobs(Arc::clone(&context), writer, wake.clone());
    background.spawn("watch of trainingjobs", jobs);
    let progress = Progress::pull(Arc::clone(&context), wake, store.clone());
    background.spawn("progress", progress);
    if let Some(candidate) = &lease {
        background.spawn("lease", candidate.clone().keep());
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "the operator runs");
    let config = ControllerConfig::default().concurrency(settings.concurrency);
    let stop = stop.shared();
    let woken = Arc::clone(&context);
    let wakes = ReceiverStream::new(wakes).inspect(move |job: &ObjectRef<TrainingJob>| {
        let namespace = job.namespace.as_deref().unwrap_or_default();
        let queue = &woken.metrics.queue;
        queue.due(namespace, &job.name, Duration::ZERO);
    });
    let filled = Arc::clone(&context);
    let (to_win, jobs) = (Arc::clone(&leadership), store.clone());
    // Until the caches are filled nothing is known of any job, and until this operator leads nothing is done about it.
    let wakes = async move {
        filled.synced_at.wait().await;
        let (wakes, all) = while_following(wakes, &to_win, &jobs).await;
        filled.metrics.work.lead(true);
        coalesce(stream::iter(all).chain(wakes)).map(|job| job.into_kind_unchecked(()))
    };
    // The watch of the jobs wakes them, as all others do.
    let reconciling = Controller::for_stream(futures::stream::pending(), store.clone())
        .with_config(config)
        .reconcile_on(wakes.flatten_stream())
        .graceful_shutdown_on(stop.clone())
        .run(reconcile, after_error, Arc::clone(&context))
        .for_each(|result| {
            match result {
                // A job that is gone needs no step.
                Err(Ended::ObjectNotFound(job)) => {
                    let namespace = job.namespace.as_deref().unwrap_or_default();
                    context.metrics.queue.forget(namespace, &job.name);
                }
                // A step that failed has been told, and so has a watch that broke.
                Ok(_) | Err(Ended::ReconcilerFailed(..) | Ended::QueueError(_)) => {}
                Err(error) => tracing::warn!(%error, "the controller"),
            }
            std::future::ready(())
        });
    let outcome = tokio::select! {
        ended = AssertUnwindSafe(reconciling).catch_unwind() => of_controller(ended, stop.peek().is_some()).map_err(RunError::from),
        ended = background.ended() => Err(ended.into()),
        () = leadership.lost() => Err(RunError::LeaseLost(settings.lease.clone().unwrap_or_default())),
        () = stopped_late(stop.clone(), store) => {
            tracing::warn!("stopping in the midst of a step; the next operator continues from there");
            Ok(())
        }
    };
    // Who is asked to stop does not start anew.
    let is_asked = stop.peek().is_some();
    let outcome = match outcome {
        Err(RunError::LeaseLost(_)) if is_asked => Ok(()),
        outcome => outcome,
    };
    context.making.stop();
    context.metrics.work.lead(false);
    // Nothing is written any more.
    drop(background);
    if let (Some(candidate), Ok(())) = (lease, &outcome) {
        candidate.give_back().await;
    }
    tracing::info!("the operator stops");
    outcome
}

/// Watches everything but the jobs.
fn watch_all(
    background: &mut Tasks,
    context: &Arc<Context>,
    leadership: &Arc<Leadership>,
    wake: &Sender<ObjectRef<TrainingJob>>,
) {
    let pods = watch_pods(Arc::clone(context), wake.clone());
    background.spawn("watch of pods", pods);
    let services = watch_services(Arc::clone(context), wake.clone());
    background.spawn("watch of services", services);
    let policies = watch_network_policies(Arc::clone(context), wake.clone());
    background.spawn("watch of networkpolicies", policies);
    let groups = watch_groups::<coscheduling::PodGroup>(Arc::clone(context), wake.clone());
    background.spawn("watch of podgroups of Coscheduling", groups);
    let groups = watch_groups::<volcano::PodGroup>(Arc::clone(context), wake.clone());
    background.spawn("watch of podgroups of Volcano", groups);
    if context.settings.watch_nodes {
        background.spawn("watch of nodes", watch_nodes(Arc::clone(context)));
        let lost = LostNodes::pull(Arc::clone(context), Arc::clone(leadership), wake.clone());
        background.spawn("lost nodes", lost);
    }
    if context.policies.reads_namespaces() {
        let namespaces = watch_namespaces(Arc::clone(context), wake.clone());
        background.spawn("watch of namespaces", namespaces);
    }
}
