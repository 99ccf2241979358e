//! The watch of one kind of PodGroup: begun when a job wants the kind, and ended when the API server does not serve it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{WatchStreamExt, watcher};
use roundhouse_api::TrainingJob;
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;

use super::{Kept, OfGang};
use crate::context::Context;
use crate::gangs::GroupKind;
use crate::metrics::labels::Watched;
use crate::slim::identity;
use crate::watches::{broke, children, map_event, scoped};

/// When a kind that is not served is looked for again. One list, however many jobs wait.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Keeps the PodGroups of a gang scheduler until the operator stops, and wakes each job whose PodGroup changes.
pub(crate) async fn watch_groups<K: GroupKind>(
    context: Arc<Context>,
    wake: Sender<ObjectRef<TrainingJob>>,
) {
    let Some(groups) = context.groups.of(K::GANG) else {
        return;
    };
    groups.wanted().await;
    let resource = format!("{}.{}", K::plural(&()), K::group(&()));
    loop {
        follow::<K>(&context, groups, &resource, &wake).await;
        let words = format!("the API server does not serve {resource}");
        let jobs = groups.is_not_served(words);
        if !jobs.is_empty() {
            tracing::warn!(%resource, "not served; jobs wait for it");
        }
        wake_all(&wake, jobs).await;
        sleep(LOOK_AGAIN).await;
    }
}

/// Until the kind is not served.
async fn follow<K: GroupKind>(
    context: &Context,
    groups: &OfGang,
    resource: &str,
    wake: &Sender<ObjectRef<TrainingJob>>,
) {
    let namespace = context.settings.namespace.as_deref();
    let api: Api<K> = scoped(context.watching.clone(), namespace);
    let events = watcher(api, children(context, Watched::PodGroups)).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => wake_all(wake, groups.take(map_event(event, reduce))).await,
            Err(error) => match code(&error) {
                Some(404) => return,
                Some(403) => {
                    broke(context, Watched::PodGroups, &error);
                    let words = format!("the operator has no right to read {resource}: {error}");
                    wake_all(wake, groups.is_not_served(words)).await;
                }
                Some(_) | None => broke(context, Watched::PodGroups, &error),
            },
        }
    }
}

fn reduce<K: GroupKind>(object: &K) -> (Kept, crate::slim::Identity) {
    let meta = object.meta();
    let identity = identity(meta);
    let kept = Kept {
        identity: identity.clone(),
        uid: meta.uid.clone().unwrap_or_default(),
        group: object.said(),
        deleting: meta.deletion_timestamp.is_some(),
    };
    (kept, identity)
}

async fn wake_all(wake: &Sender<ObjectRef<TrainingJob>>, jobs: Vec<ObjectRef<TrainingJob>>) {
    for job in jobs {
        // Closed only when the operator stops.
        let _ = wake.send(job).await;
    }
}

/// HTTP status of the answer that broke the watch, if there was one.
fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => None,
    }
}
