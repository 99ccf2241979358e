//! Labels of namespaces, by which a policy can select. The operator watches them only if the policy
//! does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::reflector::Store;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::mpsc::Sender;

use crate::job::JobName;
use crate::metrics::labels::Watched;
use crate::watch::caches::Caches;
use crate::watch::pauses::watch_backoff;
use crate::watch::projection::bounded::Bounded;
use crate::watch::wake::Wake;
use crate::watch::watches::Watches;
use roundhouse_api::lenient::LenientJob;

type Labels = BTreeMap<String, String>;

/// The labels of all namespaces.
#[derive(Debug, Default)]
pub(crate) struct Namespaces(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    labels: BTreeMap<String, Labels>,
    /// A list in progress, which replaces everything when it is complete.
    listed: BTreeMap<String, Labels>,
    is_synced: bool,
}

impl Namespaces {
    /// Labels of a namespace; none if the namespace is not known.
    pub(crate) fn labels(&self, name: &str) -> Labels {
        self.lock().labels.get(name).cloned().unwrap_or_default()
    }

    pub(crate) fn knows(&self, name: &str) -> bool {
        self.lock().labels.contains_key(name)
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.lock().is_synced
    }

    /// Applies an event of the watch. Returns the namespaces whose labels have changed.
    pub(crate) fn take(&self, event: Event<(String, Labels)>) -> Vec<String> {
        let mut state = self.lock();
        match event {
            Event::Init => {
                state.listed.clear();
                Vec::new()
            }
            Event::InitApply((name, labels)) => {
                state.listed.insert(name, labels);
                Vec::new()
            }
            Event::InitDone => {
                let fresh = std::mem::take(&mut state.listed);
                let before = std::mem::replace(&mut state.labels, fresh);
                state.is_synced = true;
                let all = state.labels.iter();
                let changed = all.filter(|(name, labels)| before.get(*name) != Some(labels));
                changed.map(|(name, _)| name.clone()).collect()
            }
            Event::Apply((name, labels)) => {
                let before = state.labels.insert(name.clone(), labels.clone());
                let is_changed = before != Some(labels);
                is_changed.then_some(name).into_iter().collect()
            }
            Event::Delete((name, _)) => {
                state.labels.remove(&name);
                Vec::new()
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the labels until the operator stops. A change of a namespace's labels wakes its jobs.
pub(crate) async fn watch_namespaces(
    watches: Watches,
    namespaces: Arc<Namespaces>,
    caches: Arc<Caches>,
    jobs: Store<LenientJob>,
    wake: Sender<Wake>,
) {
    let kind = Watched::Namespaces;
    let api: Api<Bounded<Namespace>> = Api::all(watches.client.clone());
    let events = watcher(api, watches.begin(kind)).backoff(watch_backoff());
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                watches.broke(kind, &error);
                continue;
            }
        };
        let is_filled = matches!(event, Event::InitDone);
        let changed = namespaces.take(named(event));
        if is_filled {
            caches.note_filled();
        }
        for job in jobs.state() {
            let name = JobName::of(&job.job.metadata);
            if changed.contains(&name.namespace) {
                // Closed only when the operator stops.
                let _ = wake.send(Wake::by_other(name)).await;
            }
        }
    }
}

fn named(event: Event<Bounded<Namespace>>) -> Event<(String, Labels)> {
    let named = |namespace: Bounded<Namespace>| (namespace.name_any(), namespace.labels().clone());
    match event {
        Event::Apply(namespace) => Event::Apply(named(namespace)),
        Event::Delete(namespace) => Event::Delete(named(namespace)),
        Event::Init => Event::Init,
        Event::InitApply(namespace) => Event::InitApply(named(namespace)),
        Event::InitDone => Event::InitDone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_changes_when_its_labels_change() {
        let namespaces = Namespaces::default();
        let of = |name: &str, team: &str| {
            let labels = BTreeMap::from([("team".to_owned(), team.to_owned())]);
            (name.to_owned(), labels)
        };
        assert!(!namespaces.is_synced());
        namespaces.take(Event::Init);
        namespaces.take(Event::InitApply(of("a", "vision")));
        assert_eq!(namespaces.take(Event::InitDone), ["a"]);
        assert!(namespaces.is_synced());
        assert_eq!(namespaces.labels("a")["team"], "vision");
        assert!(namespaces.take(Event::Apply(of("a", "vision"))).is_empty());
        assert_eq!(namespaces.take(Event::Apply(of("a", "speech"))), ["a"]);
        namespaces.take(Event::Init);
        namespaces.take(Event::InitApply(of("a", "speech")));
        namespaces.take(Event::InitApply(of("b", "speech")));
        assert_eq!(namespaces.take(Event::InitDone), ["b"]);
        namespaces.take(Event::Delete(of("b", "speech")));
        assert!(namespaces.labels("b").is_empty());
    }
}
