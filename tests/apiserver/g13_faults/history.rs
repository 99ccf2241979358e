//! The history of the jobs and pods of a namespace, write by write, from watches that do not pass
//! through the proxy.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ObjectList, WatchEvent, WatchParams};
use kube::{Client, Resource, ResourceExt};
use roundhouse_api::TrainingJob;
use roundhouse_contract::{Membership, labels};
use roundhouse_operator::runtime::api::metadata::version;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::invariants;

/// One version of an object.
#[derive(Clone, Debug)]
pub(crate) enum ObjectVersion {
    Job {
        uid: String,
        generation: u64,
        incidents: u32,
    },
    Pod {
        job: String,
        name: String,
        uid: String,
        place: Option<Box<Membership>>,
    },
}

type Versions = Arc<Mutex<BTreeMap<u64, ObjectVersion>>>;

pub(crate) struct History {
    versions: Versions,
    is_restored: bool,
    has_gap: bool,
    tasks: [JoinHandle<()>; 2],
}

impl History {
    /// Starts with the first change after a resource version.
    pub(crate) fn begin(client: &Client, namespace: &str, from: u64) -> Self {
        let versions = Versions::default();
        let jobs = Api::namespaced(client.clone(), namespace);
        let pods = Api::namespaced(client.clone(), namespace);
        let tasks = [
            tokio::spawn(follow(jobs, from, Arc::clone(&versions), job)),
            tokio::spawn(follow(pods, from, Arc::clone(&versions), pod)),
        ];
        Self {
            versions,
            is_restored: false,
            has_gap: false,
            tasks,
        }
    }

    /// Starts with these lists, of which that of the pods is the later one. `is_restored`: pods may
    /// have memberships of generations that the restored status of the job does not contain.
    pub(crate) fn after(
        client: &Client,
        namespace: &str,
        (jobs, pods): (&ObjectList<TrainingJob>, &ObjectList<Pod>),
        is_restored: bool,
    ) -> Self {
        let of = |version_of: &Option<String>| version(version_of.as_deref());
        let mut history = Self::begin(client, namespace, of(&jobs.metadata.resource_version));
        history.is_restored = is_restored;
        let mut versions = history.versions.lock().unwrap();
        for it in &jobs.items {
            // The job had raised its generation before a pod got it, even if the job was written
            // again later.
            versions.insert(0, job(it));
            versions.insert(of(&it.metadata.resource_version), job(it));
        }
        for it in &pods.items {
            versions.insert(of(&it.metadata.resource_version), pod(it));
        }
        drop(versions);
        history
    }

    pub(crate) fn end(&mut self) {
        // A watch that has stopped before has failed.
        self.has_gap |= self.tasks.iter().any(JoinHandle::is_finished);
        self.tasks.iter().for_each(JoinHandle::abort);
    }

    pub(crate) fn has(&self, version: u64) -> bool {
        self.versions.lock().unwrap().contains_key(&version)
    }

    pub(crate) fn has_any(&self) -> bool {
        !self.versions.lock().unwrap().is_empty()
    }

    /// A resource version of one of these resources before the newest one; `from` is the oldest.
    pub(crate) fn older(&self, from: u64, seed: u64, read: &[&str]) -> u64 {
        let versions = self.versions.lock().unwrap();
        let is_read = |seen: &ObjectVersion| match seen {
            ObjectVersion::Job { .. } => read.contains(&"trainingjobs"),
            ObjectVersion::Pod { .. } => read.contains(&"pods"),
        };
        let kept = versions.iter().filter(|(_, seen)| is_read(seen));
        let mut all: Vec<_> = [from].into_iter().chain(kept.map(|(at, _)| *at)).collect();
        let newest = all.pop().unwrap();
        assert!(!all.is_empty(), "nothing is older than {newest}");
        all[fastrand::Rng::with_seed(seed).usize(..all.len())]
    }

    /// Names of the pods in the order of their creation. A name can occur more than once.
    pub(crate) fn pods(&self) -> Vec<String> {
        let versions = self.versions.lock().unwrap();
        let mut known = HashSet::new();
        let pods = versions.values().filter_map(|seen| match seen {
            ObjectVersion::Pod { name, uid, .. } => known.insert(uid).then(|| name.clone()),
            ObjectVersion::Job { .. } => None,
        });
        pods.collect()
    }

    /// What must never happen, see [`invariants`].
    pub(crate) fn violations(&self, most_incidents: u32) -> Vec<String> {
        let versions = self.versions.lock().unwrap();
        let mut problems =
            invariants::violations(versions.values(), most_incidents, self.is_restored);
        if self.has_gap {
            problems.push("the history has a gap".to_owned());
        }
        problems
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.end();
    }
}

fn job(job: &TrainingJob) -> ObjectVersion {
    let status = job.status.clone().unwrap_or_default();
    ObjectVersion::Job {
        uid: job.uid().unwrap_or_default(),
        generation: status.membership.map_or(0, |it| it.generation),
        incidents: status.incidents.total,
    }
}

fn pod(pod: &Pod) -> ObjectVersion {
    let label = |name| pod.labels().get(name).cloned().unwrap_or_default();
    let place = pod.annotations().get(labels::MEMBERSHIP);
    ObjectVersion::Pod {
        job: label(labels::JOB_UID),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        place: place.and_then(|text| Membership::parse(text).unwrap().map(Box::new)),
    }
}

async fn follow<K>(objects: Api<K>, from: u64, versions: Versions, seen: fn(&K) -> ObjectVersion)
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let mut from = from.to_string();
    loop {
        let parameters = WatchParams::default();
        // The watch restarts where it ended.
        let Ok(events) = objects.watch(&parameters, &from).await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let mut events = events.boxed();
        while let Ok(Some(event)) = events.try_next().await {
            let object = match event {
                WatchEvent::Added(it) | WatchEvent::Modified(it) | WatchEvent::Deleted(it) => it,
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(error) => panic!("the history has a gap: {error}"),
            };
            from = object.resource_version().unwrap();
            let at = version(Some(&from));
            versions.lock().unwrap().insert(at, seen(&object));
        }
    }
}
