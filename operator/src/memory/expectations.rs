//! Own writes that the caches do not show yet. After a write the job waits until the caches have
//! seen it: a plan over stale caches would write the same again, or worse.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long the operator waits until the caches show a write. After that either the watch is late,
/// or it has skipped the write: the object was created and deleted between two events. If the write
/// created a pod, the operator asks the API server which case it is.
const PATIENCE: Duration = Duration::from_secs(15);

/// The object of a job that was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Written {
    Status,
    /// A pod of this name.
    Pod(String),
    /// The Service of the job.
    Service,
    /// The NetworkPolicy of the job.
    NetworkPolicy,
    /// The PodGroup of the job's gang with this number.
    PodGroup(u32),
}

/// What a cache shows of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The cache has no such object.
    Absent,
    /// The cache has no such object, because one was deleted at this version.
    Gone(u64),
    /// The cache has this version of the object.
    Version(u64),
}

/// Why a job waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lag {
    /// The caches have not shown all writes yet. The job waits for at most this time.
    Left(Duration),
    /// The caches should have shown this write by now. They show this of its object.
    Overdue(Written, Seen),
}

/// The writes of one job that the caches have not shown yet.
#[derive(Debug, Default)]
pub struct Expectations {
    writes: HashMap<Written, Write>,
    /// The time of the last write.
    since: Option<Instant>,
}

#[derive(Debug)]
struct Write {
    version: u64,
    deleted: bool,
}

impl Expectations {
    /// An object was created or changed to this version.
    pub fn wrote(&mut self, what: Written, version: u64) {
        let deleted = false;
        self.add(what, Write { version, deleted });
    }

    /// An object was deleted, or marked for deletion, at this version.
    pub fn deleted(&mut self, what: Written, version: u64) {
        let deleted = true;
        self.add(what, Write { version, deleted });
    }

    fn add(&mut self, what: Written, write: Write) {
        self.since = Some(Instant::now());
        self.writes.insert(what, write);
    }

    /// Why the job waits; `None` when the caches show everything.
    pub fn wait(&mut self, seen: impl Fn(&Written) -> Seen) -> Option<Lag> {
        self.writes.retain(|what, write| match seen(what) {
            Seen::Absent => !write.deleted,
            Seen::Gone(version) => !write.deleted && version < write.version,
            Seen::Version(version) => version < write.version,
        });
        let first = self.writes.keys().next()?;
        let waited = self.since.map_or(PATIENCE, |since| since.elapsed());
        let left = PATIENCE.saturating_sub(waited);
        if left.is_zero() {
            return Some(Lag::Overdue(first.clone(), seen(first)));
        }
        Some(Lag::Left(left))
    }

    /// The caches are complete without this write.
    pub fn forget(&mut self, what: &Written) {
        self.writes.remove(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_waits_until_each_write_is_seen() {
        let mut expectations = Expectations::default();
        assert_eq!(expectations.wait(|_| Seen::Absent), None);
        expectations.wrote(Written::Pod("a".to_owned()), 7);
        expectations.deleted(Written::Pod("b".to_owned()), 8);
        assert!(expectations.wait(|_| Seen::Version(6)).is_some());
        let half = |what: &Written| match what {
            Written::Pod(name) if name == "a" => Seen::Version(9),
            _ => Seen::Version(1),
        };
        assert!(expectations.wait(half).is_some());
        assert_eq!(expectations.wait(|_| Seen::Absent), None);
    }

    #[test]
    fn created_and_deleted_pod_is_not_awaited() {
        let mut expectations = Expectations::default();
        expectations.wrote(Written::Pod("a".to_owned()), 7);
        assert!(expectations.wait(|_| Seen::Absent).is_some());
        // The cache reports the deletion of an earlier pod of this name.
        assert!(expectations.wait(|_| Seen::Gone(5)).is_some());
        assert_eq!(expectations.wait(|_| Seen::Gone(8)), None);
    }

    #[test]
    fn unseen_write_is_overdue_until_it_is_forgotten() {
        let mut expectations = Expectations::default();
        let pod = Written::Pod("a".to_owned());
        expectations.wrote(pod.clone(), 7);
        expectations.since = Instant::now().checked_sub(PATIENCE);
        for _ in 0..2 {
            let overdue = expectations.wait(|_| Seen::Absent);
            assert_eq!(overdue, Some(Lag::Overdue(pod.clone(), Seen::Absent)));
        }
        expectations.forget(&pod);
        assert_eq!(expectations.wait(|_| Seen::Absent), None);
    }
}
