//! The caches of the jobs' objects: only what a plan needs, by job.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::runtime::watcher::Event;

use self::gone::Gone;
use crate::job::{JobKey, JobName};

mod gone;

#[derive(Clone, Debug, PartialEq)]
pub struct Entry<T> {
    /// The cached part of the object.
    pub value: T,
    /// `metadata.resourceVersion` of the object.
    pub version: u64,
    /// Name of the job, to wake it.
    pub job_name: String,
    /// UID of the job.
    pub job_uid: String,
}

/// The objects of one job, by name. It is a snapshot: later events do not change it.
pub type OfJob<T> = Arc<BTreeMap<String, Arc<Entry<T>>>>;

/// The cache of one kind of object.
#[derive(Debug)]
pub struct Cache<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    objects: Objects<T>,
    /// A list in progress, which replaces everything when it is complete.
    fresh: Option<Objects<T>>,
    synced: bool,
    gone: Gone,
}

#[derive(Debug)]
struct Objects<T> {
    by_job: HashMap<JobKey, OfJob<T>>,
    /// UID of the job of each object, by namespace and name: a user may edit the label with the
    /// UID.
    jobs: HashMap<(String, String), String>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        let state = State {
            objects: Objects::default(),
            fresh: None,
            synced: false,
            gone: Gone::default(),
        };
        Self {
            state: Mutex::new(state),
        }
    }
}

impl<T: PartialEq> Cache<T> {
    /// Applies an event of a watch. Returns the jobs to wake.
    pub fn take(&self, event: Event<(String, String, Entry<T>)>) -> Vec<JobName> {
        let mut state = self.lock();
        match event {
            Event::Init => {
                state.fresh = Some(Objects::default());
                Vec::new()
            }
            Event::InitApply((namespace, name, entry)) => {
                let entry = state.objects.shared(&namespace, &name, entry);
                let fresh = state.fresh.get_or_insert_default();
                fresh.insert(namespace, name, entry);
                Vec::new()
            }
            Event::InitDone => {
                let fresh = state.fresh.take().unwrap_or_default();
                let before = std::mem::replace(&mut state.objects, fresh);
                state.synced = true;
                // A job that lost all its objects during a gap has to be reconciled, too.
                let all = before.by_job.iter().chain(&state.objects.by_job);
                all.filter_map(wake).collect()
            }
            Event::Apply((namespace, name, entry)) | Event::Delete((namespace, name, entry))
                if state.objects.is_newer(&namespace, &name, entry.version) =>
            {
                // The cache has a newer version.
                Vec::new()
            }
            Event::Apply((namespace, name, entry)) => {
                // A user may have edited the label with the job's name.
                let job = JobName::new(&namespace, &entry.job_name);
                let former = state.objects.insert(namespace, name, Arc::new(entry));
                former.into_iter().chain([job]).collect()
            }
            Event::Delete((namespace, name, entry)) => {
                let job = JobName::new(&namespace, &entry.job_name);
                state.objects.remove(&namespace, &name);
                state.gone.add(&namespace, &name, entry.version);
                vec![job]
            }
        }
    }

    /// The objects of a job, by name.
    #[must_use]
    pub fn of(&self, job: &JobKey) -> OfJob<T> {
        let state = self.lock();
        state.objects.by_job.get(job).cloned().unwrap_or_default()
    }

    /// The version at which an object of this name was deleted a short while ago.
    #[must_use]
    pub fn deleted_at(&self, namespace: &str, name: &str) -> Option<u64> {
        self.lock().gone.version(namespace, name)
    }

    /// The objects of all jobs.
    #[must_use]
    pub fn all(&self) -> Vec<(JobKey, OfJob<T>)> {
        let state = self.lock();
        let jobs = state.objects.by_job.iter();
        jobs.map(|(job, all)| (job.clone(), Arc::clone(all)))
            .collect()
    }

    /// Whether the watch has listed everything once.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.lock().synced
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self {
            by_job: HashMap::new(),
            jobs: HashMap::new(),
        }
    }
}

impl<T: PartialEq> Objects<T> {
    /// The object as it is cached, if it has not changed: otherwise a list in progress would take
    /// as much memory as the cache.
    fn shared(&self, namespace: &str, name: &str, entry: Entry<T>) -> Arc<Entry<T>> {
        let job = JobKey::new(namespace, &entry.job_uid);
        let kept = self.by_job.get(&job).and_then(|all| all.get(name));
        match kept {
            Some(kept) if **kept == entry => Arc::clone(kept),
            _ => Arc::new(entry),
        }
    }

    /// Whether the cache has a newer version of an object.
    fn is_newer(&self, namespace: &str, name: &str, version: u64) -> bool {
        let of = (namespace.to_owned(), name.to_owned());
        let kept = self.jobs.get(&of).and_then(|uid| {
            let job = JobKey::new(&of.0, uid);
            self.by_job.get(&job)?.get(name)
        });
        kept.is_some_and(|kept| kept.version > version)
    }

    /// Keeps an object. Returns its former job, if that is another one, to wake it.
    fn insert(&mut self, namespace: String, name: String, entry: Arc<Entry<T>>) -> Option<JobName> {
        let known = self.jobs.get(&(namespace.clone(), name.clone()));
        let former = match known {
            Some(uid) if *uid == entry.job_uid => None,
            _ => self.remove(&namespace, &name),
        };
        let of = (namespace.clone(), name.clone());
        self.jobs.insert(of, entry.job_uid.clone());
        let job = JobKey::new(namespace, &entry.job_uid);
        // If a snapshot of the map is in use, the map is copied, without its objects.
        let of_job = Arc::make_mut(self.by_job.entry(job).or_default());
        of_job.insert(name, entry);
        former
    }

    /// Removes an object. Returns its job.
    fn remove(&mut self, namespace: &str, name: &str) -> Option<JobName> {
        let uid = self.jobs.remove(&(namespace.to_owned(), name.to_owned()))?;
        let job = JobKey::new(namespace, uid);
        let of_job = Arc::make_mut(self.by_job.get_mut(&job)?);
        let entry = of_job.remove(name)?;
        if of_job.is_empty() {
            self.by_job.remove(&job);
        }
        Some(JobName::new(namespace, &entry.job_name))
    }
}

fn wake<T>((job, objects): (&JobKey, &OfJob<T>)) -> Option<JobName> {
    objects
        .values()
        .next()
        .map(|entry| JobName::new(&job.namespace, &entry.job_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_job(namespace: &str, uid: &str) -> (String, String, Entry<()>) {
        let entry = Entry {
            value: (),
            version: 1,
            job_name: format!("job-{uid}"),
            job_uid: uid.to_owned(),
        };
        (namespace.to_owned(), "pod".to_owned(), entry)
    }

    #[test]
    fn objects_of_a_job_stay_unchanged_during_events() {
        let cache = Cache::default();
        let job = JobKey::new("ml", "a");
        cache.take(Event::Apply(of_job("ml", "a")));
        let look = cache.of(&job);
        cache.take(Event::Delete(of_job("ml", "a")));
        assert!(cache.of(&job).is_empty());
        assert_eq!(look.len(), 1);
    }

    #[test]
    fn cache_remembers_the_version_of_a_deletion() {
        let cache = Cache::default();
        assert_eq!(cache.deleted_at("ml", "pod"), None);
        cache.take(Event::Apply(of_job("ml", "a")));
        cache.take(Event::Delete(of_job("ml", "a")));
        assert_eq!(cache.deleted_at("ml", "pod"), Some(1));
    }

    #[test]
    fn event_older_than_the_cache_changes_nothing() {
        let cache = Cache::default();
        let event = |version| {
            let (namespace, name, entry) = of_job("ml", "a");
            (namespace, name, Entry { version, ..entry })
        };
        let job = JobKey::new("ml", "a");
        assert_eq!(cache.take(Event::Apply(event(7))).len(), 1);
        assert!(cache.take(Event::Apply(event(6))).is_empty());
        assert!(cache.take(Event::Delete(event(6))).is_empty());
        assert_eq!(cache.of(&job)["pod"].version, 7);
        // A list replaces everything, even newer versions: etcd may have been restored.
        cache.take(Event::Init);
        cache.take(Event::InitApply(event(5)));
        cache.take(Event::InitDone);
        assert_eq!(cache.of(&job)["pod"].version, 5);
    }

    #[test]
    fn unchanged_objects_of_a_new_list_are_shared() {
        let cache = Cache::default();
        cache.take(Event::Apply(of_job("ml", "a")));
        cache.take(Event::Apply(of_job("other", "a")));
        let job = |namespace: &str| JobKey::new(namespace, "a");
        let before = [job("ml"), job("other")].map(|job| cache.of(&job));
        let (namespace, name, mut changed) = of_job("other", "a");
        changed.version += 1;
        cache.take(Event::Init);
        cache.take(Event::InitApply(of_job("ml", "a")));
        cache.take(Event::InitApply((namespace, name, changed)));
        cache.take(Event::InitDone);
        let after = [job("ml"), job("other")].map(|job| cache.of(&job));
        let is_shared = |at: usize| Arc::ptr_eq(&before[at]["pod"], &after[at]["pod"]);
        assert!(is_shared(0) && !is_shared(1));
        assert_eq!(after[1]["pod"].version, 2);
    }

    #[test]
    fn object_with_an_edited_job_label_leaves_its_former_job() {
        let cache = Cache::default();
        let job = |namespace: &str, uid: &str| JobKey::new(namespace, uid);
        cache.take(Event::Apply(of_job("other", "a")));
        cache.take(Event::Apply(of_job("ml", "a")));
        assert_eq!(cache.take(Event::Apply(of_job("ml", "a"))).len(), 1);
        let woken = cache.take(Event::Apply(of_job("ml", "b")));
        let expected = ["job-a", "job-b"].map(|name| JobName::new("ml", name));
        assert_eq!(woken, expected, "both jobs are woken");
        assert!(cache.of(&job("ml", "a")).is_empty());
        assert_eq!(cache.of(&job("ml", "b")).len(), 1);
        assert_eq!(cache.of(&job("other", "a")).len(), 1, "another namespace's");
        cache.take(Event::Delete(of_job("ml", "b")));
        assert!(cache.of(&job("ml", "b")).is_empty());
        cache.take(Event::Delete(of_job("other", "a")));
        let left = &cache.lock().objects;
        assert!(left.by_job.is_empty() && left.jobs.is_empty());
    }
}
