//! After a write the job waits until the caches have seen it: a plan over stale caches would do the
//! same again, or worse.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::job::JobKey;

/// How long a write is waited for. Later either the watch is late, or it has skipped the write (made and gone between two
/// events). Of a pod that was made the API server is asked which.
const PATIENCE: Duration = Duration::from_secs(15);
/// A job that has not come back by then is gone.
const FORGOTTEN: Duration = Duration::from_mins(10);

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Written {
    /// The job's status.
    Status,
    /// A pod.
    Pod(String),
    /// The Service.
    Service,
    /// The NetworkPolicy.
    NetworkPolicy,
    /// The PodGroup.
    PodGroup,
}

/// What a cache shows of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// There is none.
    Absent,
    /// There is none: one was deleted at this version.
    Gone(u64),
    /// This version of it.
    Version(u64),
}

/// Why a job waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lag {
    /// The caches have not seen all writes: it is looked at again after this time.
    Left(Duration),
    /// They should have seen this write by now, and show this of it.
    Overdue(Written, Seen),
}

/// Writes that the caches have not seen yet, by job. A job that is gone is not asked about again: what is too
/// old to be waited for is dropped when another writes.
#[derive(Debug, Default)]
pub struct Expectations {
    by_job: Mutex<HashMap<JobKey, Pending>>,
}

#[derive(Debug)]
struct Pending {
    writes: HashMap<Written, Write>,
    since: Instant,
}

#[derive(Debug)]
struct Write {
    version: u64,
    deleted: bool,
}

impl Expectations {
    /// An object was created or changed to this version.
    pub fn wrote(&self, job: &JobKey, what: Written, version: u64) {
        self.add(
            job,
            what,
            Write {
                version,
                deleted: false,
            },
        );
    }

    /// An object was deleted, or marked for it, at this version.
    pub fn deleted(&self, job: &JobKey, what: Written, version: u64) {
        self.add(
            job,
            what,
            Write {
                version,
                deleted: true,
            },
        );
    }

    fn add(&self, job: &JobKey, what: Written, write: Write) {
        let mut by_job = self.lock();
        by_job.retain(|_, pending| pending.since.elapsed() < FORGOTTEN);
        let fresh = || Pending {
            writes: HashMap::new(),
            since: Instant::now(),
        };
        let pending = by_job.entry(job.clone()).or_insert_with(fresh);
        pending.since = Instant::now();
        pending.writes.insert(what, write);
    }

    /// Why to wait; `None` when the caches have seen everything.
    pub fn wait(&self, job: &JobKey, seen: impl Fn(&Written) -> Seen) -> Option<Lag> {
        let mut by_job = self.lock();
        let pending = by_job.get_mut(job)?;
        pending.writes.retain(|what, write| match seen(what) {
            Seen::Absent => !write.deleted,
            Seen::Gone(version) => !write.deleted && version < write.version,
            Seen::Version(version) => version < write.version,
        });
        let Some(first) = pending.writes.keys().next() else {
            by_job.remove(job);
            return None;
        };
        let left = PATIENCE.saturating_sub(pending.since.elapsed());
        if left.is_zero() {
            return Some(Lag::Overdue(first.clone(), seen(first)));
        }
        Some(Lag::Left(left))
    }

    /// The caches are right without a write.
    pub fn forget(&self, job: &JobKey, what: &Written) {
        if let Some(pending) = self.lock().get_mut(job) {
            pending.writes.remove(what);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Pending>> {
        self.by_job.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_waits_until_each_write_is_seen() {
        let job = JobKey::new("ns", "uid");
        let expectations = Expectations::default();
        assert_eq!(expectations.wait(&job, |_| Seen::Absent), None);
        expectations.wrote(&job, Written::Pod("a".to_owned()), 7);
        expectations.deleted(&job, Written::Pod("b".to_owned()), 8);
        assert!(expectations.wait(&job, |_| Seen::Version(6)).is_some());
        let half = |what: &Written| match what {
            Written::Pod(name) if name == "a" => Seen::Version(9),
            _ => Seen::Version(1),
        };
        assert!(expectations.wait(&job, half).is_some());
        assert_eq!(expectations.wait(&job, |_| Seen::Absent), None);
    }

    #[test]
    fn a_pod_that_was_told_and_deleted_at_once_is_not_waited_for() {
        let job = JobKey::new("ns", "uid");
        let expectations = Expectations::default();
        expectations.wrote(&job, Written::Pod("a".to_owned()), 7);
        assert!(expectations.wait(&job, |_| Seen::Absent).is_some());
        // An earlier pod of this name.
        assert!(expectations.wait(&job, |_| Seen::Gone(5)).is_some());
        assert_eq!(expectations.wait(&job, |_| Seen::Gone(8)), None);
    }

    #[test]
    fn a_write_that_is_not_seen_for_long_is_asked_about_until_the_caches_are_right() {
        let job = JobKey::new("ns", "uid");
        let expectations = Expectations::default();
        let pod = Written::Pod("a".to_owned());
        expectations.wrote(&job, pod.clone(), 7);
        let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
        expectations.lock().get_mut(&job).unwrap().since = long_ago;
        // Another job's write does not make it forget.
        expectations.wrote(&JobKey::new("ns", "other"), Written::Status, 8);
        for _ in 0..2 {
            let overdue = expectations.wait(&job, |_| Seen::Absent);
            assert_eq!(overdue, Some(Lag::Overdue(pod.clone(), Seen::Absent)));
        }
        expectations.forget(&job, &pod);
        assert_eq!(expectations.wait(&job, |_| Seen::Absent), None);
    }

    #[test]
    fn a_job_that_is_gone_leaves_nothing_behind() {
        let job = |uid: &str| JobKey::new("ns", uid);
        let expectations = Expectations::default();
        expectations.wrote(&job("gone"), Written::Status, 7);
        expectations.wrote(&job("young"), Written::Status, 7);
        let long_ago = Instant::now().checked_sub(FORGOTTEN).unwrap();
        expectations.lock().get_mut(&job("gone")).unwrap().since = long_ago;
        expectations.wrote(&job("here"), Written::Status, 7);
        let mut left: Vec<JobKey> = expectations.lock().keys().cloned().collect();
        left.sort();
        assert_eq!(left, [job("here"), job("young")]);
    }
}
