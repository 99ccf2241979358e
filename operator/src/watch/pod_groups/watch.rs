//! The watch of one kind of PodGroup: it starts when a job wants the kind, and ends when the API
//! server does not serve it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Resource;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;

use super::{Kept, OfGang};
use crate::job::JobName;
use crate::watch::caches::Caches;
use crate::watch::pauses::watch_backoff;
use crate::watch::pod_group_kinds::GroupKind;
use crate::watch::projection::bounded::Bounded;
use crate::watch::projection::{Identity, identity};
use crate::watch::streams::map_event;
use crate::watch::wake::Wake;
use crate::watch::watches::Watches;

/// When the operator looks again for a kind that is not served: one list, however many jobs wait.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Keeps the PodGroups of a gang scheduler until the operator stops, and wakes each job whose
/// PodGroup changes.
pub(crate) async fn watch_groups<K: GroupKind>(
    watches: Watches,
    caches: Arc<Caches>,
    wake: Sender<Wake>,
) {
    let Some(groups) = caches.groups.of(K::GANG) else {
        return;
    };
    groups.wanted().await;
    let resource = format!("{}.{}", K::plural(&()), K::group(&()));
    loop {
        let words = follow::<K>(&watches, groups, &resource, &wake).await;
        let jobs = groups.is_not_served(words);
        if !jobs.is_empty() {
            tracing::warn!(%resource, "cannot read a kind of PodGroup; jobs that want it wait");
        }
        wake_all(&wake, jobs).await;
        sleep(LOOK_AGAIN).await;
    }
}

/// Follows the kind until it cannot be read, and returns why. The next call lists everything again.
async fn follow<K: GroupKind>(
    watches: &Watches,
    groups: &OfGang,
    resource: &str,
    wake: &Sender<Wake>,
) -> String {
    let events = watcher(
        watches.objects::<Bounded<K>>(),
        watches.begin_own(K::WATCHED),
    );
    let events = events.backoff(watch_backoff());
    let mut events = std::pin::pin!(events);
    let mut is_listed = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                is_listed |= matches!(event, Event::InitDone);
                wake_all(wake, groups.take(map_event(event, reduce))).await;
            }
            Err(error) => {
                let code = code(&error);
                if code != Some(404) {
                    watches.broke(K::WATCHED, &error);
                }
                if let Some(words) = gives_up(resource, code, is_listed, &error) {
                    return words;
                }
            }
        }
    }
    format!("the watch of {resource} has ended")
}

/// Why the kind cannot be read. `None`: it could be read, and the watch continues by itself.
fn gives_up(
    resource: &str,
    code: Option<u16>,
    is_listed: bool,
    error: &watcher::Error,
) -> Option<String> {
    match code {
        Some(404) => Some(format!("the API server does not serve {resource}")),
        Some(403) => Some(format!(
            "the operator has no right to read {resource}: {error}"
        )),
        // The groups are unknown. Workers that train need none, so only new pods wait.
        Some(_) | None if !is_listed => Some(format!("{resource} cannot be read: {error}")),
        Some(_) | None => None,
    }
}

fn reduce<K: GroupKind>(watched: &Bounded<K>) -> (Kept, Identity) {
    let meta = watched.meta();
    let identity = identity(meta);
    let kept = Kept {
        identity: identity.clone(),
        uid: meta.uid.clone().unwrap_or_default(),
        // A group that the operator did not create counts as empty.
        group: watched.object.as_ref().map(K::said).unwrap_or_default(),
        deleting: meta.deletion_timestamp.is_some(),
    };
    (kept, identity)
}

async fn wake_all(wake: &Sender<Wake>, jobs: Vec<JobName>) {
    for job in jobs {
        // Closed only when the operator stops.
        let _ = wake.send(Wake::by_other(job)).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_group_kind_survives_transient_errors() {
        let error = watcher::Error::NoResourceVersion;
        let words = |code, is_listed| gives_up("podgroups.example.com", code, is_listed, &error);
        assert!(words(Some(404), true).unwrap().contains("does not serve"));
        for is_listed in [false, true] {
            assert!(words(Some(403), is_listed).unwrap().contains("no right"));
        }
        assert!(words(Some(500), false).unwrap().contains("cannot be read"));
        assert!(words(None, false).unwrap().contains("cannot be read"));
        assert_eq!(words(Some(500), true), None);
        assert_eq!(words(None, true), None);
    }
}
