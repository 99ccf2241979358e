//! What became of the jobs and pods of a namespace, write by write, as a watcher beside the operator saw it; and what must
//! never be in it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ObjectList, WatchEvent, WatchParams};
use kube::{Client, Resource, ResourceExt};
use roundhouse_api::TrainingJob;
use roundhouse_contract::membership::Action;
use roundhouse_contract::{Incarnation, Membership, labels};
use roundhouse_operator::runtime::api::metadata::version;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// One version of an object.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
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

type Versions = Arc<Mutex<BTreeMap<u64, Seen>>>;

pub(crate) struct History {
    versions: Versions,
    is_restored: bool,
    has_gap: bool,
    tasks: [JoinHandle<()>; 2],
}

impl History {
    /// From this version on.
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

    /// From these lists on, of which the pods' is the later one. `is_restored`: pods may have heard of generations that
    /// their job has forgotten.
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
            // Generations were raised before pods heard of them, whatever of the job was written later.
            versions.insert(0, job(it));
            versions.insert(of(&it.metadata.resource_version), job(it));
        }
        for it in &pods.items {
            versions.insert(of(&it.metadata.resource_version), pod(it));
        }
        drop(versions);
        history
    }

    /// It hears of nothing more.
    pub(crate) fn end(&mut self) {
        // They do not end by themselves.
        self.has_gap |= self.tasks.iter().any(JoinHandle::is_finished);
        self.tasks.iter().for_each(JoinHandle::abort);
    }

    pub(crate) fn has(&self, version: u64) -> bool {
        self.versions.lock().unwrap().contains_key(&version)
    }

    pub(crate) fn has_any(&self) -> bool {
        !self.versions.lock().unwrap().is_empty()
    }

    /// A version before the newest of these kinds, of which `from` is the first.
    pub(crate) fn older(&self, from: u64, seed: u64, read: &[&str]) -> u64 {
        let versions = self.versions.lock().unwrap();
        let is_read = |seen: &Seen| match seen {
            Seen::Job { .. } => read.contains(&"trainingjobs"),
            Seen::Pod { .. } => read.contains(&"pods"),
        };
        let kept = versions.iter().filter(|(_, seen)| is_read(seen));
        let mut all: Vec<_> = [from].into_iter().chain(kept.map(|(at, _)| *at)).collect();
        let newest = all.pop().unwrap();
        assert!(!all.is_empty(), "nothing is older than {newest}");
        all[fastrand::Rng::with_seed(seed).usize(..all.len())]
    }

    /// Names of the pods that were made, one after the other. Some have had the name of another one before.
    pub(crate) fn pods(&self) -> Vec<String> {
        let versions = self.versions.lock().unwrap();
        let mut known = HashSet::new();
        let pods = versions.values().filter_map(|seen| match seen {
            Seen::Pod { name, uid, .. } => known.insert(uid).then(|| name.clone()),
            Seen::Job { .. } => None,
        });
        pods.collect()
    }

    /// What must never be.
    pub(crate) fn violations(&self, most_incidents: u32) -> Vec<String> {
        let versions = self.versions.lock().unwrap();
        let mut wrong = violations(versions.values(), most_incidents, self.is_restored);
        if self.has_gap {
            wrong.push("the history has a gap".to_owned());
        }
        wrong
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.end();
    }
}

fn job(job: &TrainingJob) -> Seen {
    let status = job.status.clone().unwrap_or_default();
    Seen::Job {
        uid: job.uid().unwrap_or_default(),
        generation: status.membership.map_or(0, |it| it.generation),
        incidents: status.incidents.total,
    }
}

fn pod(pod: &Pod) -> Seen {
    let label = |name| pod.labels().get(name).cloned().unwrap_or_default();
    let place = pod.annotations().get(labels::MEMBERSHIP);
    Seen::Pod {
        job: label(labels::JOB_UID),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        place: place.and_then(|text| Membership::parse(text).unwrap().map(Box::new)),
    }
}

async fn follow<K>(objects: Api<K>, from: u64, versions: Versions, seen: fn(&K) -> Seen)
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let mut from = from.to_string();
    loop {
        let parameters = WatchParams::default();
        // It begins anew where it ended.
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

/// What is wrong in a history: numbers that shrink, an incident too many, a place that was given before its generation was
/// raised, two worlds of one generation, or a rank for two members. What was raised may be forgotten if etcd was restored.
fn violations<'a>(
    history: impl Iterator<Item = &'a Seen>,
    most_incidents: u32,
    is_restored: bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut jobs: HashMap<&str, (u64, u32)> = HashMap::new();
    let mut pods: HashMap<&str, u64> = HashMap::new();
    let mut worlds: HashMap<(&str, u64), &str> = HashMap::new();
    let mut ranks: HashMap<(&str, u64, u32), &Incarnation> = HashMap::new();
    for seen in history {
        match seen {
            Seen::Job {
                uid,
                generation,
                incidents,
            } => {
                let before = jobs.entry(uid).or_default();
                if *generation < before.0 || *incidents < before.1 {
                    wrong.push(format!("after {before:?} came {seen:?}"));
                }
                if *incidents > most_incidents {
                    wrong.push(format!("more than {most_incidents} incidents: {seen:?}"));
                }
                *before = (*generation, *incidents);
            }
            Seen::Pod { place: None, .. } => {}
            Seen::Pod {
                job,
                name: _,
                uid,
                place: Some(place),
            } => {
                let before = pods.insert(uid, place.generation).unwrap_or(0);
                if place.generation < before {
                    wrong.push(format!("after generation {before} came {seen:?}"));
                }
                let raised = jobs.get(job.as_str()).map_or(0, |job| job.0);
                if place.generation > raised && !is_restored {
                    wrong.push(format!("its generation was not raised: {seen:?}"));
                }
                if place.action == Action::Leave {
                    continue;
                }
                let world = (job.as_str(), place.generation);
                if *worlds.entry(world).or_insert(&place.members) != place.members {
                    wrong.push(format!("a second world of one generation: {seen:?}"));
                }
                let rank = (job.as_str(), place.generation, place.node_rank);
                if *ranks.entry(rank).or_insert(&place.incarnation) != &place.incarnation {
                    wrong.push(format!("a second member of one rank: {seen:?}"));
                }
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::membership::Master;

    use super::*;

    fn job(generation: u64, incidents: u32) -> Seen {
        Seen::Job {
            uid: "job".to_owned(),
            generation,
            incidents,
        }
    }

    fn pod(uid: &str, generation: u64, node_rank: u32, members: &str) -> Seen {
        let place = Membership {
            nonce: String::new(),
            generation,
            action: Action::Join,
            node_rank,
            nodes: 2,
            procs_per_worker: 1,
            master: Master {
                address: "127.0.0.9".to_owned(),
                port: 1,
            },
            members: members.to_owned(),
            incarnation: Incarnation {
                pod_uid: uid.to_owned(),
                restarts: 0,
            },
            issued_at: String::new(),
            repeats: 0,
        };
        Seen::Pod {
            job: "job".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            place: Some(Box::new(place)),
        }
    }

    #[test]
    fn what_must_never_be_is_found_in_a_history() {
        let well = [
            job(1, 0),
            pod("a", 1, 0, "ab"),
            pod("b", 1, 1, "ab"),
            job(1, 1),
            job(2, 1),
            pod("b", 2, 0, "b"),
        ];
        assert_eq!(violations(well.iter(), 1, false), [""; 0]);
        let cases = [
            ("after (2, 1)", job(1, 1)),
            ("after (2, 1)", job(2, 0)),
            ("more than 1", job(2, 2)),
            ("after generation 2", pod("b", 1, 1, "ab")),
            ("not raised", pod("a", 3, 1, "ab")),
            ("second world", pod("a", 2, 1, "ab")),
            ("second member", pod("a", 2, 0, "b")),
        ];
        for (words, last) in cases {
            let history = well.iter().chain([&last]);
            let wrong = violations(history, 1, false);
            assert!(
                wrong.len() == 1 && wrong[0].contains(words),
                "{words}: {wrong:?}"
            );
        }
        // Of a generation that its job has forgotten.
        let last = pod("a", 3, 1, "ab");
        let history = || well.iter().chain([&last]);
        assert_eq!(violations(history(), 1, true), [""; 0]);
    }
}
