//! PodGroups of all jobs. Their kinds belong to other projects, or must be enabled, so the API
//! server may not serve them. The operator looks for a kind when the first job wants it, and
//! watches it only while the API server serves it. Jobs that want a kind that is not served are
//! woken when that changes.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::runtime::watcher::Event;
use roundhouse_api::Gang;
use roundhouse_contract::names;
use roundhouse_planner::{ObservedGroup, PodGroup};
use tokio::sync::SetOnce;

use crate::job::{JobKey, JobName};
use crate::watch::cache::{Cache, Entry};
use crate::watch::projection::Identity;

pub(crate) mod watch;

/// The PodGroups of all gang schedulers.
#[derive(Debug, Default)]
pub struct Groups {
    coscheduling: OfGang,
    volcano: OfGang,
    kubernetes: OfGang,
}

/// The PodGroups of one gang scheduler.
#[derive(Debug, Default)]
pub(crate) struct OfGang {
    cache: Cache<Kept>,
    state: Mutex<State>,
    wanted: SetOnce<()>,
}

/// The cached part of a PodGroup.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kept {
    pub(crate) identity: Identity,
    pub(crate) uid: String,
    pub(crate) group: PodGroup,
    pub(crate) deleting: bool,
}

#[derive(Debug, Default)]
struct State {
    served: Served,
    /// Jobs to wake when `served` changes.
    waiting: HashSet<JobName>,
}

/// Whether the API server serves a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Served {
    /// The API server has not answered yet.
    #[default]
    Unknown,
    /// The API server does not serve the kind, or does not let the operator read it: the reason.
    No(String),
    /// The API server serves the kind, and the cache is filled.
    Yes,
}

impl Groups {
    /// The PodGroups of a gang scheduler; `None` for a job without one.
    pub(crate) const fn of(&self, gang: Gang) -> Option<&OfGang> {
        match gang {
            Gang::None => None,
            Gang::Coscheduling => Some(&self.coscheduling),
            Gang::Volcano => Some(&self.volcano),
            Gang::Kubernetes => Some(&self.kubernetes),
        }
    }

    /// The PodGroups of the job's gangs as observed, by the numbers of the gangs. The first gang
    /// always has an entry. `None`: the kind is unknown yet, and the job is woken when that
    /// changes.
    #[must_use]
    pub fn observe(
        &self,
        gang: Gang,
        key: &JobKey,
        job: &str,
    ) -> Option<BTreeMap<u32, ObservedGroup>> {
        let first = |observed| BTreeMap::from([(0, observed)]);
        let Some(all) = self.of(gang) else {
            return Some(first(ObservedGroup::Missing));
        };
        match all.served(key, job) {
            Served::Unknown => None,
            Served::No(words) => Some(first(ObservedGroup::Impossible(words))),
            Served::Yes => Some(all.observed(key, job)),
        }
    }

    /// A PodGroup of the job as it is cached.
    pub(crate) fn kept(&self, gang: Gang, key: &JobKey, name: &str) -> Option<Arc<Entry<Kept>>> {
        self.of(gang)?.cache.of(key).get(name).cloned()
    }
}

impl Kept {
    fn observed(&self, key: &JobKey) -> ObservedGroup {
        let Self {
            identity,
            uid,
            group,
            deleting,
        } = self.clone();
        if identity.controller.as_ref() != Some(&key.uid) {
            return if deleting {
                ObservedGroup::ForeignLeaving
            } else {
                ObservedGroup::Foreign
            };
        }
        ObservedGroup::Ours {
            uid,
            group,
            deleting,
        }
    }
}

impl OfGang {
    /// Waits until a job wants the kind.
    pub(crate) async fn wanted(&self) {
        self.wanted.wait().await;
    }

    /// Applies an event of the watch. Returns the jobs to wake.
    pub(crate) fn take(&self, event: Event<(String, String, Entry<Kept>)>) -> Vec<JobName> {
        let is_filled = matches!(event, Event::InitDone);
        let mut jobs = self.cache.take(event);
        if is_filled {
            jobs.extend(self.change(Served::Yes));
        }
        jobs
    }

    /// The API server does not serve the kind, or does not let the operator read it. Returns the
    /// jobs to wake.
    pub(crate) fn is_not_served(&self, words: String) -> Vec<JobName> {
        let mut jobs = self.change(Served::No(words));
        self.cache.take(Event::Init);
        jobs.extend(self.cache.take(Event::InitDone));
        jobs
    }

    fn change(&self, served: Served) -> Vec<JobName> {
        let mut state = self.lock();
        if state.served == served {
            return Vec::new();
        }
        state.served = served;
        state.waiting.drain().collect()
    }

    fn served(&self, key: &JobKey, name: &str) -> Served {
        // Only the first job that wants the kind starts the watch.
        let _ = self.wanted.set(());
        let mut state = self.lock();
        if state.served != Served::Yes {
            let job = JobName::new(&key.namespace, name);
            state.waiting.insert(job);
        }
        state.served.clone()
    }

    fn observed(&self, key: &JobKey, job: &str) -> BTreeMap<u32, ObservedGroup> {
        let kept = self.cache.of(key);
        let all = kept.iter().filter_map(|(name, entry)| {
            let gang = names::gang_of_pod_group(job, name)?;
            Some((gang, entry.value.observed(key)))
        });
        let mut all: BTreeMap<u32, ObservedGroup> = all.collect();
        all.entry(0).or_default();
        all
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GANG: Gang = Gang::Volcano;

    fn key() -> JobKey {
        JobKey::new("ml", "job-uid")
    }

    fn observe(groups: &Groups) -> Option<ObservedGroup> {
        groups.observe(GANG, &key(), "digits")?.remove(&0)
    }

    fn entry(controller: &str) -> (String, String, Entry<Kept>) {
        let identity = Identity {
            controller: Some(controller.to_owned()),
            job_name: "digits".to_owned(),
            job_uid: "job-uid".to_owned(),
        };
        let group = PodGroup {
            min_member: 2,
            queue: None,
            priority_class: None,
        };
        let value = Kept {
            identity,
            uid: "uid".to_owned(),
            group,
            deleting: false,
        };
        let entry = Entry {
            value,
            version: 1,
            job_name: "digits".to_owned(),
            job_uid: "job-uid".to_owned(),
        };
        ("ml".to_owned(), "digits".to_owned(), entry)
    }

    #[tokio::test]
    async fn first_job_starts_the_watch_of_its_group_kind() {
        let groups = Groups::default();
        let all = groups.of(GANG).unwrap();
        assert!(all.wanted.get().is_none());
        assert_eq!(observe(&groups), None, "not asked yet");
        all.wanted().await;
        let jobs = [JobName::new("ml", "digits")];
        assert_eq!(all.is_not_served("no".to_owned()), jobs);
        let impossible = ObservedGroup::Impossible("no".to_owned());
        assert_eq!(observe(&groups), Some(impossible));
        assert!(all.is_not_served("no".to_owned()).is_empty(), "no news");
        all.take(Event::Init);
        assert_eq!(all.take(Event::InitDone), jobs);
        assert_eq!(observe(&groups), Some(ObservedGroup::Missing));
        let other = groups.of(Gang::Coscheduling).unwrap();
        assert!(other.wanted.get().is_none(), "no job wants this kind");
    }

    #[test]
    fn pod_group_belongs_to_the_job_that_controls_it() {
        let groups = Groups::default();
        let all = groups.of(GANG).unwrap();
        all.take(Event::Init);
        all.take(Event::InitDone);
        all.take(Event::Apply(entry("another")));
        assert_eq!(observe(&groups), Some(ObservedGroup::Foreign));
        let mut leaving = entry("another");
        leaving.2.value.deleting = true;
        all.take(Event::Apply(leaving));
        assert_eq!(observe(&groups), Some(ObservedGroup::ForeignLeaving));
        all.take(Event::Apply(entry("job-uid")));
        let found = observe(&groups).unwrap();
        assert!(matches!(found, ObservedGroup::Ours { .. }), "{found:?}");
        let woken = all.is_not_served("gone".to_owned());
        assert_eq!(woken, [JobName::new("ml", "digits")]);
        assert!(groups.kept(GANG, &key(), "digits").is_none());
    }

    #[test]
    fn job_without_a_gang_scheduler_has_no_pod_group() {
        let groups = Groups::default();
        let found = groups.observe(Gang::None, &key(), "digits");
        let missing = BTreeMap::from([(0, ObservedGroup::Missing)]);
        assert_eq!(found, Some(missing));
    }

    #[test]
    fn pod_groups_are_known_by_the_gangs_in_their_names() {
        let groups = Groups::default();
        let all = groups.of(GANG).unwrap();
        all.take(Event::Init);
        all.take(Event::InitDone);
        for name in ["digits-gang-2", "digits-gang-x", "another"] {
            let mut entry = entry("job-uid");
            name.clone_into(&mut entry.1);
            all.take(Event::Apply(entry));
        }
        let found = groups.observe(GANG, &key(), "digits").unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), [&0, &2]);
        assert_eq!(found[&0], ObservedGroup::Missing);
        let second = &found[&2];
        assert!(matches!(second, ObservedGroup::Ours { .. }), "{second:?}");
    }
}
