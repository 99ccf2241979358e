//! Puts everything together and runs until it is told to stop.

use std::collections::HashSet;
use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::PartialObjectMeta;
use kube::runtime::controller::{Config as ControllerConfig, Controller};
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{Config as WatchConfig, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use prometheus::Registry;
use roundhouse_api::TrainingJob;
use roundhouse_contract::labels;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tracing_subscriber::EnvFilter;

use crate::cache::{Cache, Entry};
use crate::context::Context;
use crate::driver::{after_error, reconcile};
use crate::expectations::Expectations;
use crate::http;
use crate::metrics::Metrics;
use crate::observe::version;
use crate::progress::Progress;
use crate::settings::{LogFormat, Settings};
use crate::slim::{self, identity};

/// Events of one moment are worked on together.
const DEBOUNCE: Duration = Duration::from_millis(20);

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
    /// A metric's name is taken.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Sets up logs; `RUST_LOG` chooses what is written.
pub fn init_logging(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// It cannot start.
pub async fn run(settings: Settings) -> Result<(), RunError> {
    let mut config = kube::Config::infer().await?;
    // Its retry can hold one call for minutes; `calls` has a deadline.
    config.default_retry = false;
    config.connect_timeout = Some(crate::calls::DEADLINE);
    let client = Client::try_from(config)?;
    run_with(client, settings, shutdown_signal()).await
}

/// Runs with a given client until `stop` is done.
///
/// # Errors
/// It cannot start.
pub async fn run_with(
    client: Client,
    settings: Settings,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) -> Result<(), RunError> {
    let registry = Registry::new();
    let reporter = Reporter {
        controller: labels::FIELD_MANAGER.to_owned(),
        instance: std::env::var("HOSTNAME").ok(),
    };
    let context = Arc::new(Context {
        client: client.clone(),
        metrics: Metrics::new(&registry)?,
        pods: Cache::default(),
        services: Cache::default(),
        network_policies: Cache::default(),
        taken: Mutex::new(HashSet::new()),
        expectations: Expectations::default(),
        progress: Progress::default(),
        recorder: Recorder::new(client.clone(), reporter),
        settings,
    });
    let settings = &context.settings;
    let listener = tokio::net::TcpListener::bind(settings.http_address)
        .await
        .map_err(|source| RunError::Listen {
            address: settings.http_address.to_string(),
            source,
        })?;
    let http = tokio::spawn(
        axum::serve(listener, http::router(Arc::clone(&context), registry)).into_future(),
    );
    let (wake, woken) = channel(4_096);
    let background = [
        tokio::spawn(watch_pods(Arc::clone(&context), wake.clone())),
        tokio::spawn(watch_services(Arc::clone(&context), wake.clone())),
        tokio::spawn(watch_network_policies(Arc::clone(&context), wake.clone())),
        tokio::spawn(Progress::pull(Arc::clone(&context), wake)),
    ];
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "the operator runs");
    let jobs: Api<TrainingJob> = scoped(client, settings.namespace.as_deref());
    let config = ControllerConfig::default()
        .debounce(DEBOUNCE)
        .concurrency(settings.concurrency);
    Controller::new(jobs, WatchConfig::default())
        .with_config(config)
        .reconcile_on(ReceiverStream::new(woken))
        .graceful_shutdown_on(stop)
        .run(reconcile, after_error, Arc::clone(&context))
        .for_each(|result| async move {
            if let Err(error) = result {
                tracing::debug!(%error, "reconcile");
            }
        })
        .await;
    tracing::info!("the operator stops");
    background.iter().for_each(tokio::task::JoinHandle::abort);
    http.abort();
    Ok(())
}

fn scoped<K>(client: Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    }
}

fn children() -> WatchConfig {
    WatchConfig::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::FIELD_MANAGER))
}

async fn watch_pods(context: Arc<Context>, wake: Sender<ObjectRef<TrainingJob>>) {
    let api: Api<Pod> = scoped(
        context.client.clone(),
        context.settings.namespace.as_deref(),
    );
    let events = watcher(api, children()).default_backoff().map_ok(|event| {
        map_event(event, |full: &Pod| {
            (slim::pod(full), identity(&full.metadata))
        })
    });
    feed(events, &context.pods, &wake).await;
}

async fn watch_services(context: Arc<Context>, wake: Sender<ObjectRef<TrainingJob>>) {
    let api: Api<PartialObjectMeta<Service>> = scoped(
        context.client.clone(),
        context.settings.namespace.as_deref(),
    );
    feed(identities(api), &context.services, &wake).await;
}

async fn watch_network_policies(context: Arc<Context>, wake: Sender<ObjectRef<TrainingJob>>) {
    let api: Api<PartialObjectMeta<NetworkPolicy>> = scoped(
        context.client.clone(),
        context.settings.namespace.as_deref(),
    );
    feed(identities(api), &context.network_policies, &wake).await;
}

/// Watches only the metadata of a kind.
fn identities<K>(
    api: Api<PartialObjectMeta<K>>,
) -> impl futures::Stream<Item = Result<Event<Named<slim::Identity>>, watcher::Error>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api, children()).default_backoff().map_ok(|event| {
        map_event(event, |object: &PartialObjectMeta<K>| {
            let identity = identity(&object.metadata);
            (identity.clone(), identity)
        })
    })
}

/// Namespace, name, and what is kept.
type Named<T> = (String, String, Entry<T>);

fn map_event<K: ResourceExt, T>(
    event: Event<K>,
    reduce: impl Fn(&K) -> (T, slim::Identity),
) -> Event<Named<T>> {
    let named = |object: K| {
        let (
            value,
            slim::Identity {
                controller: _,
                job_name,
                job_uid,
            },
        ) = reduce(&object);
        let version = version(object.resource_version().as_deref());
        let entry = Entry {
            value,
            version,
            job_name,
            job_uid,
        };
        (
            object.namespace().unwrap_or_default(),
            object.name_any(),
            entry,
        )
    };
    match event {
        Event::Apply(object) => Event::Apply(named(object)),
        Event::Delete(object) => Event::Delete(named(object)),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(named(object)),
        Event::InitDone => Event::InitDone,
    }
}

async fn feed<T: Clone>(
    events: impl futures::Stream<Item = Result<Event<Named<T>>, watcher::Error>> + Send,
    cache: &Cache<T>,
    wake: &Sender<ObjectRef<TrainingJob>>,
) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                for job in cache.take(event) {
                    // Closed only when the operator stops.
                    let _ = wake.send(job).await;
                }
            }
            Err(error) => tracing::warn!(%error, "a watch broke; listing again"),
        }
    }
}

async fn shutdown_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
