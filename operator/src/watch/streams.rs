//! One watch for each kind of object, reduced to the cached fields; each change wakes its job.

use std::fmt::Debug;
use std::future::ready;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use roundhouse_planner::JobIdentity;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Sender;

use crate::job::JobName;
use crate::metrics::labels::Watched;
use crate::runtime::api::metadata::version;
use crate::watch::cache::{Cache, Entry};
use crate::watch::caches::Caches;
use crate::watch::cordoned::watched::WatchedNode;
use crate::watch::pauses::watch_backoff;
use crate::watch::projection::bounded::Bounded;
use crate::watch::projection::watched::WatchedPod;
use crate::watch::projection::{self, OwnedObject, identity};
use crate::watch::wake::{Cause, Wake};
use crate::watch::watches::Watches;
use roundhouse_api::lenient::LenientJob;

/// Keeps the jobs and wakes each job that changes, until the operator stops. `note` gets each event
/// before the job is reconciled.
pub(crate) async fn watch_jobs(
    watches: Watches,
    jobs: Writer<LenientJob>,
    note: impl Fn(&Event<JobIdentity>) + Send,
    wake: Sender<Wake>,
) {
    let kind = Watched::TrainingJobs;
    let known = jobs.as_reader();
    let events = watcher(watches.objects::<LenientJob>(), watches.begin(kind))
        .backoff(watch_backoff())
        .modify(|job: &mut LenientJob| {
            projection::job(&mut job.job.metadata);
            if let Some(known) = known.get(&ObjectRef::from_obj(job)) {
                job.share(&known);
            }
        })
        .try_filter(|event| ready(!is_old(&known, event)))
        .inspect_ok(|event| note(&identified(event)))
        .reflect(jobs)
        .inspect_ok(|event| {
            if matches!(event, Event::InitDone) {
                watches.caught_up(kind);
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
            Err(error) => watches.broke(kind, &error),
        }
    }
}

/// Whether a newer version of the job is known.
fn is_old(known: &Store<LenientJob>, event: &Event<LenientJob>) -> bool {
    let (Event::Apply(job) | Event::Delete(job)) = event else {
        return false;
    };
    let of = |job: &LenientJob| version(job.resource_version().as_deref());
    let known = known.get(&ObjectRef::from_obj(job));
    known.is_some_and(|known| of(&known) > of(job))
}

fn identified(event: &Event<LenientJob>) -> Event<JobIdentity> {
    let identity = |job: &LenientJob| JobIdentity {
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        uid: job.uid().unwrap_or_default(),
    };
    match event {
        Event::Apply(job) => Event::Apply(identity(job)),
        Event::Delete(job) => Event::Delete(identity(job)),
        Event::Init => Event::Init,
        Event::InitApply(job) => Event::InitApply(identity(job)),
        Event::InitDone => Event::InitDone,
    }
}

/// Feeds the cache of pods until the operator stops.
pub(crate) async fn watch_pods(watches: Watches, caches: Arc<Caches>, wake: Sender<Wake>) {
    let kind = Watched::Pods;
    let events = watcher(watches.objects::<WatchedPod>(), watches.begin_own(kind))
        .backoff(watch_backoff())
        .map_ok(|event| {
            map_event(event, |watched: &WatchedPod| {
                (watched.slim(), identity(&watched.pod.metadata))
            })
        });
    feed(events, &caches.pods, &caches, &watches, kind, &wake).await;
}

/// Feeds the cache of Services until the operator stops. `is_as_built`: whether a Service is as the
/// operator builds it.
pub(crate) async fn watch_services(
    watches: Watches,
    caches: Arc<Caches>,
    is_as_built: impl Fn(&Service) -> bool + Send,
    wake: Sender<Wake>,
) {
    let kind = Watched::Services;
    let events = owned_objects(&watches, kind, is_as_built);
    feed(events, &caches.services, &caches, &watches, kind, &wake).await;
}

/// Feeds the cache of NetworkPolicies until the operator stops. `is_as_built`: whether a policy is
/// as the operator builds it. `note` gets each event.
pub(crate) async fn watch_network_policies(
    watches: Watches,
    caches: Arc<Caches>,
    is_as_built: impl Fn(&NetworkPolicy) -> bool + Send,
    note: impl Fn(&Event<Named<OwnedObject>>) + Send,
    wake: Sender<Wake>,
) {
    let kind = Watched::NetworkPolicies;
    let events = owned_objects(&watches, kind, is_as_built).inspect_ok(note);
    feed(
        events,
        &caches.network_policies,
        &caches,
        &watches,
        kind,
        &wake,
    )
    .await;
}

/// Keeps the names of nodes that pods have to leave, until the operator stops. It wakes no job: a
/// cordon changes nothing by itself.
pub(crate) async fn watch_nodes(watches: Watches, caches: Arc<Caches>) {
    let nodes: Api<WatchedNode> = Api::all(watches.client.clone());
    let events = watcher(nodes, watches.begin(Watched::Nodes)).backoff(watch_backoff());
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => caches.cordoned.take(event),
            Err(error) => watches.broke(Watched::Nodes, &error),
        }
    }
}

/// Watches a kind of which the operator keeps only the owner, and whether the object is as it was
/// built.
fn owned_objects<K>(
    watches: &Watches,
    kind: Watched,
    is_as_built: impl Fn(&K) -> bool + Send,
) -> impl futures::Stream<Item = Result<Event<Named<OwnedObject>>, watcher::Error>> + Send
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    watcher(watches.objects::<Bounded<K>>(), watches.begin_own(kind))
        .backoff(watch_backoff())
        .map_ok(move |event| {
            map_event(event, |watched: &Bounded<K>| {
                let identity = identity(watched.meta());
                let owned_object = OwnedObject {
                    controller: identity.controller.clone(),
                    is_as_built: watched.object.as_ref().is_some_and(&is_as_built),
                };
                (owned_object, identity)
            })
        })
}

/// Namespace, name and cached entry of an object.
pub(crate) type Named<T> = (String, String, Entry<T>);

/// Reduces the objects of an event to their cached fields.
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
    caches: &Caches,
    watches: &Watches,
    kind: Watched,
    wake: &Sender<Wake>,
) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let is_filled = matches!(event, Event::InitDone);
                let jobs = cache.take(event);
                if is_filled {
                    watches.caught_up(kind);
                    caches.note_filled();
                }
                for job in jobs {
                    let cause = match kind {
                        Watched::Pods => Cause::Workers,
                        _ => Cause::Other,
                    };
                    // Closed only when the operator stops.
                    let _ = wake.send(Wake { job, cause }).await;
                }
            }
            Err(error) => watches.broke(kind, &error),
        }
    }
}
