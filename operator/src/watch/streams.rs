//! One watch for each kind of child, reduced to what is kept; every change wakes its job.

use std::fmt::Debug;
use std::future::ready;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{Config as WatchConfig, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use roundhouse_contract::labels;
use roundhouse_planner::JobIdentity;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Sender;

use crate::controller::context::Context;
use crate::controller::leaving;
use crate::controller::observe::version;
use crate::controller::priority::{Cause, Wake};
use crate::controller::resources::{network_policy, service};
use crate::job::JobName;
use crate::metrics::labels::Watched;
use crate::watch::cache::{Cache, Entry};
use crate::watch::cordoned::watched::WatchedNode;
use crate::watch::pauses::watch_backoff;
use crate::watch::projection::bounded::Bounded;
use crate::watch::projection::watched::WatchedPod;
use crate::watch::projection::{self, identity};
use roundhouse_api::unreadable::Guarded;

/// All objects of a kind, or those of the one namespace that is watched.
pub(crate) fn scoped<K>(client: Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    }
}

/// Jobs in one answer of a list. An answer is kept as text until it has been parsed, and a job has up to 1.5 MB.
const PAGE_OF_JOBS: u32 = 50;
/// Other objects in one answer: anybody who may create them can give them our labels, and as much text as a job's.
const PAGE: u32 = 100;

/// The watch begins: its age counts from here, heard or not.
pub(crate) fn begin(context: &Context, kind: Watched) -> WatchConfig {
    context.metrics.watch_ages.hear(kind);
    let page = match kind {
        Watched::TrainingJobs => PAGE_OF_JOBS,
        _ => PAGE,
    };
    WatchConfig::default()
        .timeout(context.settings.patience.watch)
        .page_size(page)
}

/// The watch of a kind of which only the operator's objects are wanted.
pub(crate) fn children(context: &Context, kind: Watched) -> WatchConfig {
    let ours = format!("{}={}", labels::MANAGED_BY, labels::FIELD_MANAGER);
    begin(context, kind).labels(&ours)
}

/// Keeps the jobs, and wakes each that changes, until the operator stops. Metrics hear of a job here before it is worked on.
pub(crate) async fn watch_jobs(context: Arc<Context>, jobs: Writer<Guarded>, wake: Sender<Wake>) {
    let api: Api<Guarded> = scoped(
        context.watching.clone(),
        context.settings.namespace.as_deref(),
    );
    let known = jobs.as_reader();
    let events = watcher(api, begin(&context, Watched::TrainingJobs))
        .backoff(watch_backoff())
        .modify(|job: &mut Guarded| {
            projection::job(&mut job.job.metadata);
            if let Some(known) = known.get(&ObjectRef::from_obj(job)) {
                job.share(&known);
            }
        })
        .try_filter(|event| ready(!is_old(&known, event)))
        .inspect_ok(|event| note_job(&context, event))
        .reflect(jobs)
        .inspect_ok(|event| {
            if matches!(event, Event::InitDone) {
                context.metrics.watch_ages.catch_up(Watched::TrainingJobs);
            }
        })
        .applied_objects();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(job) => {
                let job = JobName::of(&job.job.metadata);
                // Closed only when the operator stops.
                let _ = wake.send(Wake::by_other(job)).await;
            }
            Err(error) => broke(&context, Watched::TrainingJobs, &error),
        }
    }
}

/// Whether a newer version of the job is known: it was told before.
fn is_old(known: &Store<Guarded>, event: &Event<Guarded>) -> bool {
    let (Event::Apply(job) | Event::Delete(job)) = event else {
        return false;
    };
    let of = |job: &Guarded| version(job.resource_version().as_deref());
    let known = known.get(&ObjectRef::from_obj(job));
    known.is_some_and(|known| of(&known) > of(job))
}

fn note_job(context: &Context, event: &Event<Guarded>) {
    let identity = |job: &Guarded| JobIdentity {
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        uid: job.uid().unwrap_or_default(),
    };
    if let Event::Delete(job) = event {
        context
            .metrics
            .queue
            .forget(&JobName::of(&job.job.metadata));
    }
    let event = match event {
        Event::Apply(job) => Event::Apply(identity(job)),
        Event::Delete(job) => Event::Delete(identity(job)),
        Event::Init => Event::Init,
        Event::InitApply(job) => Event::InitApply(identity(job)),
        Event::InitDone => Event::InitDone,
    };
    context.metrics.jobs.apply(&event);
    context.memory.apply(&event);
}

/// Feeds the cache until the operator stops.
pub(crate) async fn watch_pods(context: Arc<Context>, wake: Sender<Wake>) {
    let api: Api<WatchedPod> = scoped(
        context.watching.clone(),
        context.settings.namespace.as_deref(),
    );
    let ours = children(&context, Watched::Pods);
    let events = watcher(api, ours).backoff(watch_backoff()).map_ok(|event| {
        map_event(event, |watched: &WatchedPod| {
            (watched.slim(), identity(&watched.pod.metadata))
        })
    });
    feed(events, &context.pods, &wake, &context, Watched::Pods).await;
}

/// Feeds the cache until the operator stops.
pub(crate) async fn watch_services(context: Arc<Context>, wake: Sender<Wake>) {
    let api: Api<Bounded<Service>> = scoped(
        context.watching.clone(),
        context.settings.namespace.as_deref(),
    );
    let (cache, resource) = (&context.services, Watched::Services);
    let events = surroundings(api, children(&context, resource), service::is_as_built);
    feed(events, cache, &wake, &context, resource).await;
}

/// Feeds the cache until the operator stops. `deleted` hears of jobs whose policy was deleted.
pub(crate) async fn watch_network_policies(
    context: Arc<Context>,
    deleted: Sender<JobIdentity>,
    wake: Sender<Wake>,
) {
    let api: Api<Bounded<NetworkPolicy>> = scoped(
        context.watching.clone(),
        context.settings.namespace.as_deref(),
    );
    let (cache, resource) = (&context.network_policies, Watched::NetworkPolicies);
    let ours = children(&context, resource);
    let scrapers = &context.settings.worker_metrics_from;
    let is_as_built = |live: &NetworkPolicy| network_policy::is_as_built(live, scrapers);
    let events = surroundings(api, ours, is_as_built);
    let events = events.inspect_ok(|event| leaving::note(event, &deleted));
    feed(events, cache, &wake, &context, resource).await;
}

/// Keeps the names of nodes that pods have to leave, until the operator stops. It wakes no job: a cordon changes nothing by
/// itself.
pub(crate) async fn watch_nodes(context: Arc<Context>) {
    let nodes: Api<WatchedNode> = Api::all(context.watching.clone());
    let events = watcher(nodes, begin(&context, Watched::Nodes)).backoff(watch_backoff());
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => context.cordoned.take(event),
            Err(error) => broke(&context, Watched::Nodes, &error),
        }
    }
}

/// Watches a kind of which only is kept whose it is, and whether it is what was made.
fn surroundings<K>(
    api: Api<Bounded<K>>,
    ours: WatchConfig,
    is_as_built: impl Fn(&K) -> bool + Send,
) -> impl futures::Stream<Item = Result<Event<Named<projection::OwnedObject>>, watcher::Error>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api, ours)
        .backoff(watch_backoff())
        .map_ok(move |event| {
            map_event(event, |watched: &Bounded<K>| {
                let identity = identity(watched.meta());
                let owned_object = projection::OwnedObject {
                    controller: identity.controller.clone(),
                    is_as_built: watched.object.as_ref().is_some_and(&is_as_built),
                };
                (owned_object, identity)
            })
        })
}

/// Namespace, name, and what is kept.
pub(crate) type Named<T> = (String, String, Entry<T>);

/// Reduces the objects of an event.
pub(crate) fn map_event<K: ResourceExt, T>(
    event: Event<K>,
    reduce: impl Fn(&K) -> (T, projection::Identity),
) -> Event<Named<T>> {
    let named = |object: K| {
        let (
            value,
            projection::Identity {
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

async fn feed<T: Clone + PartialEq>(
    events: impl futures::Stream<Item = Result<Event<Named<T>>, watcher::Error>> + Send,
    cache: &Cache<T>,
    wake: &Sender<Wake>,
    context: &Context,
    resource: Watched,
) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let is_filled = matches!(event, Event::InitDone);
                let jobs = cache.take(event);
                if is_filled {
                    context.metrics.watch_ages.catch_up(resource);
                    context.note_filled();
                }
                for job in jobs {
                    let cause = match resource {
                        Watched::Pods => Cause::Workers,
                        _ => Cause::Other,
                    };
                    // Closed only when the operator stops.
                    let _ = wake.send(Wake { job, cause }).await;
                }
            }
            Err(error) => broke(context, resource, &error),
        }
    }
}

/// A watch that breaks is begun again. Until it has caught up, nothing is deleted before the API server was asked.
pub(crate) fn broke(context: &Context, resource: Watched, error: &watcher::Error) {
    context.metrics.work.watch_broke(resource);
    context.metrics.watch_ages.break_off(resource);
    let resource = resource.as_str();
    tracing::warn!(%error, resource, "a watch broke; the operator begins it again");
}
