//! What was repaired of the jobs' objects, and when. Another controller or a webhook may undo it at once, each time: the
//! pauses between two repairs of one object grow.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roundhouse_planner::{GroupWrites, PodGroup, Repair};

use crate::job::JobKey;
use crate::memory::expectations::Written;

/// Pauses between two repairs of one object.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// After the first repair. Each further one doubles it.
    pub first: Duration,
    /// The longest one.
    pub longest: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            first: Duration::from_mins(1),
            longest: Duration::from_hours(1),
        }
    }
}

impl Pauses {
    /// How long a repair is remembered. A second repair within this time means that somebody reverts them.
    fn memory(self) -> Duration {
        self.longest * 2
    }
}

/// What somebody does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Drift {
    /// It is no longer what was made.
    Modified,
    /// It is gone.
    Deleted,
}

type Object = (JobKey, Written, Drift);

/// The last repair of each object.
#[derive(Debug)]
pub struct RepairBackoff {
    pauses: Pauses,
    last: Mutex<HashMap<Object, Last>>,
}

#[derive(Clone, Debug)]
struct Last {
    at: Instant,
    pause: Duration,
    /// Of a PodGroup, which follows its job: what was written.
    group: Option<PodGroup>,
}

impl RepairBackoff {
    /// Of an operator that has just started.
    #[must_use]
    pub fn new(pauses: Pauses) -> Self {
        let last = Mutex::default();
        Self { pauses, last }
    }

    /// An object was repaired, or made.
    pub fn note(&self, job: &JobKey, what: Written, drift: Drift) {
        self.note_content(job, what, drift, None);
    }

    /// A PodGroup was created, or changed to say this.
    pub fn note_group(&self, job: &JobKey, drift: Drift, group: &PodGroup) {
        self.note_content(job, Written::PodGroup, drift, Some(group.clone()));
    }

    fn note_content(&self, job: &JobKey, what: Written, drift: Drift, group: Option<PodGroup>) {
        let Pauses { first, longest } = self.pauses;
        let mut all = self.lock();
        all.retain(|_, last| last.at.elapsed() < self.pauses.memory());
        let object = (job.clone(), what, drift);
        let before = all.get(&object);
        let before = before.filter(|last| drift == Drift::Deleted || last.group == group);
        let pause = match (before, drift) {
            (Some(last), _) => longest.min(first.max(last.pause * 2)),
            (None, Drift::Modified) => first,
            // It may be made for the first time: whoever deletes it then has undone nothing.
            (None, Drift::Deleted) => Duration::ZERO,
        };
        let at = Instant::now();
        all.insert(object, Last { at, pause, group });
    }

    /// When an object is to be repaired that is not as it was made, or is to be made that is not there.
    #[must_use]
    pub fn next(&self, job: &JobKey, what: Written, drift: Drift) -> Repair {
        let key = (job.clone(), what, drift);
        let last = self
            .lock()
            .get(&key)
            .map(|last| (last.at.elapsed(), last.pause));
        match last {
            Some((_, Duration::ZERO)) => Repair::Now,
            Some((age, pause)) if age < pause => Repair::Later(pause.saturating_sub(age)),
            Some((age, _)) if age < self.pauses.memory() => Repair::Again,
            Some(_) | None => Repair::Now,
        }
    }

    /// What is remembered of the writes of the job's PodGroup.
    #[must_use]
    pub fn of_group(&self, job: &JobKey) -> GroupWrites {
        let next = |drift| self.next(job, Written::PodGroup, drift);
        let key = (job.clone(), Written::PodGroup, Drift::Modified);
        let repaired_to = self.lock().get(&key).and_then(|last| last.group.clone());
        GroupWrites {
            repaired_to,
            changed: next(Drift::Modified),
            deleted: next(Drift::Deleted),
        }
    }

    /// The operator itself has deleted the job's PodGroup: creating it once more repairs nothing.
    pub fn group_removed(&self, job: &JobKey) {
        let mut all = self.lock();
        for drift in [Drift::Modified, Drift::Deleted] {
            all.remove(&(job.clone(), Written::PodGroup, drift));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Object, Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that was repaired was repaired so long before.
    fn pass(repaired: &RepairBackoff, span: Duration) {
        for last in repaired.lock().values_mut() {
            last.at = last.at.checked_sub(span).unwrap();
        }
    }

    #[test]
    fn the_pause_between_two_repairs_doubles_up_to_one_hour() {
        let (repaired, job) = (
            RepairBackoff::new(Pauses::default()),
            JobKey::new("ml", "uid"),
        );
        let next = || repaired.next(&job, Written::Service, Drift::Modified);
        assert_eq!(next(), Repair::Now);
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            repaired.note(&job, Written::Service, Drift::Modified);
            pass(&repaired, Duration::from_mins(minutes - 1));
            assert!(matches!(next(), Repair::Later(_)), "{minutes}");
            pass(&repaired, Duration::from_mins(1));
            assert_eq!(next(), Repair::Again, "{minutes}");
        }
        let other = JobKey::new("ml", "another");
        let changed = |job, what| repaired.next(job, what, Drift::Modified);
        assert_eq!(changed(&other, Written::Service), Repair::Now);
        assert_eq!(changed(&job, Written::NetworkPolicy), Repair::Now);
        pass(&repaired, Duration::from_hours(2));
        assert_eq!(next(), Repair::Now, "it was well for long");
        repaired.note(&other, Written::Service, Drift::Modified);
        assert_eq!(repaired.lock().len(), 1, "nothing is left of the old one");
    }

    #[test]
    fn an_object_that_is_deleted_each_time_is_made_at_once_only_twice() {
        let (repaired, job) = (
            RepairBackoff::new(Pauses::default()),
            JobKey::new("ml", "uid"),
        );
        let next = || repaired.next(&job, Written::Service, Drift::Deleted);
        assert_eq!(next(), Repair::Now, "it was never made");
        repaired.note(&job, Written::Service, Drift::Deleted);
        assert_eq!(next(), Repair::Now, "it was deleted once");
        for minutes in [1, 2, 4] {
            repaired.note(&job, Written::Service, Drift::Deleted);
            assert!(matches!(next(), Repair::Later(_)), "{minutes}");
            pass(&repaired, Duration::from_mins(minutes));
            assert_eq!(next(), Repair::Again, "{minutes}");
        }
        let changed = repaired.next(&job, Written::Service, Drift::Modified);
        assert_eq!(changed, Repair::Now, "that is another matter");
    }

    #[test]
    fn a_pod_group_that_follows_its_job_is_not_repaired_and_one_that_is_reverted_is_postponed() {
        let (repaired, job) = (
            RepairBackoff::new(Pauses::default()),
            JobKey::new("ml", "uid"),
        );
        let says = |min_member| PodGroup {
            min_member,
            ..PodGroup::default()
        };
        let due = |min_member| repaired.of_group(&job).due(&says(min_member));
        for min_member in [2, 3, 4] {
            assert_eq!(due(min_member), Repair::Now, "the job was scaled");
            repaired.note_group(&job, Drift::Modified, &says(min_member));
        }
        assert!(matches!(due(4), Repair::Later(_)), "a webhook reverts it");
        assert_eq!(due(5), Repair::Now, "the job was scaled again");
        pass(&repaired, Duration::from_mins(1));
        assert_eq!(due(4), Repair::Again);
        for _ in 0..2 {
            assert_eq!(repaired.of_group(&job).deleted, Repair::Now);
            repaired.note_group(&job, Drift::Deleted, &says(4));
        }
        assert!(matches!(repaired.of_group(&job).deleted, Repair::Later(_)));
        repaired.group_removed(&job);
        assert_eq!(repaired.of_group(&job), GroupWrites::default(), "suspended");
    }
}
