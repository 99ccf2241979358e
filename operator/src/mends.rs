//! What was mended of the jobs' objects, and when. Another controller or a webhook may undo it at once, each time: the
//! pauses between two mends of one object grow.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roundhouse_planner::{GroupWrites, Mend, PodGroup};

use crate::cache::Job;
use crate::expectations::Written;

/// Pauses between two mends of one object.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// After the first mend. Each further one doubles it.
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
pub enum Harm {
    /// It is no longer what was made.
    Changed,
    /// It is gone.
    Deleted,
}

type Object = (Job, Written, Harm);

/// The last mend of each object.
#[derive(Debug)]
pub struct Mends {
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

impl Mends {
    /// Of an operator that has just started.
    #[must_use]
    pub fn new(pauses: Pauses) -> Self {
        let last = Mutex::default();
        Self { pauses, last }
    }

    /// An object was mended, or made.
    pub fn note(&self, job: &Job, what: Written, harm: Harm) {
        self.note_content(job, what, harm, None);
    }

    /// A PodGroup was created, or changed to say this.
    pub fn note_group(&self, job: &Job, harm: Harm, group: &PodGroup) {
        self.note_content(job, Written::PodGroup, harm, Some(group.clone()));
    }

    fn note_content(&self, job: &Job, what: Written, harm: Harm, group: Option<PodGroup>) {
        let Pauses { first, longest } = self.pauses;
        let mut all = self.lock();
        all.retain(|_, last| last.at.elapsed() < self.pauses.memory());
        let object = (job.clone(), what, harm);
        let before = all.get(&object);
        let before = before.filter(|last| harm == Harm::Deleted || last.group == group);
        let pause = match (before, harm) {
            (Some(last), _) => longest.min(first.max(last.pause * 2)),
            (None, Harm::Changed) => first,
            // It may be made for the first time: whoever deletes it then has undone nothing.
            (None, Harm::Deleted) => Duration::ZERO,
        };
        let at = Instant::now();
        all.insert(object, Last { at, pause, group });
    }

    /// When an object is to be mended that is not as it was made, or is to be made that is not there.
    #[must_use]
    pub fn next(&self, job: &Job, what: Written, harm: Harm) -> Mend {
        let key = (job.clone(), what, harm);
        let last = self
            .lock()
            .get(&key)
            .map(|last| (last.at.elapsed(), last.pause));
        match last {
            Some((_, Duration::ZERO)) => Mend::Now,
            Some((age, pause)) if age < pause => Mend::Later(pause.saturating_sub(age)),
            Some((age, _)) if age < self.pauses.memory() => Mend::Again,
            Some(_) | None => Mend::Now,
        }
    }

    /// What is remembered of the writes of the job's PodGroup.
    #[must_use]
    pub fn of_group(&self, job: &Job) -> GroupWrites {
        let next = |harm| self.next(job, Written::PodGroup, harm);
        let key = (job.clone(), Written::PodGroup, Harm::Changed);
        let repaired_to = self.lock().get(&key).and_then(|last| last.group.clone());
        GroupWrites {
            repaired_to,
            changed: next(Harm::Changed),
            deleted: next(Harm::Deleted),
        }
    }

    /// The operator itself has deleted the job's PodGroup: creating it once more repairs nothing.
    pub fn group_removed(&self, job: &Job) {
        let mut all = self.lock();
        for harm in [Harm::Changed, Harm::Deleted] {
            all.remove(&(job.clone(), Written::PodGroup, harm));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Object, Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that was mended was mended so long before.
    fn pass(mended: &Mends, span: Duration) {
        for last in mended.lock().values_mut() {
            last.at = last.at.checked_sub(span).unwrap();
        }
    }

    #[test]
    fn the_pause_between_two_repairs_doubles_up_to_one_hour() {
        let (mended, job) = (
            Mends::new(Pauses::default()),
            ("ml".to_owned(), "uid".to_owned()),
        );
        let next = || mended.next(&job, Written::Service, Harm::Changed);
        assert_eq!(next(), Mend::Now);
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            mended.note(&job, Written::Service, Harm::Changed);
            pass(&mended, Duration::from_mins(minutes - 1));
            assert!(matches!(next(), Mend::Later(_)), "{minutes}");
            pass(&mended, Duration::from_mins(1));
            assert_eq!(next(), Mend::Again, "{minutes}");
        }
        let other = ("ml".to_owned(), "another".to_owned());
        let changed = |job, what| mended.next(job, what, Harm::Changed);
        assert_eq!(changed(&other, Written::Service), Mend::Now);
        assert_eq!(changed(&job, Written::NetworkPolicy), Mend::Now);
        pass(&mended, Duration::from_hours(2));
        assert_eq!(next(), Mend::Now, "it was well for long");
        mended.note(&other, Written::Service, Harm::Changed);
        assert_eq!(mended.lock().len(), 1, "nothing is left of the old one");
    }

    #[test]
    fn an_object_that_is_deleted_each_time_is_made_at_once_only_twice() {
        let (mended, job) = (
            Mends::new(Pauses::default()),
            ("ml".to_owned(), "uid".to_owned()),
        );
        let next = || mended.next(&job, Written::Service, Harm::Deleted);
        assert_eq!(next(), Mend::Now, "it was never made");
        mended.note(&job, Written::Service, Harm::Deleted);
        assert_eq!(next(), Mend::Now, "it was deleted once");
        for minutes in [1, 2, 4] {
            mended.note(&job, Written::Service, Harm::Deleted);
            assert!(matches!(next(), Mend::Later(_)), "{minutes}");
            pass(&mended, Duration::from_mins(minutes));
            assert_eq!(next(), Mend::Again, "{minutes}");
        }
        let changed = mended.next(&job, Written::Service, Harm::Changed);
        assert_eq!(changed, Mend::Now, "that is another matter");
    }

    #[test]
    fn a_pod_group_that_follows_its_job_is_not_repaired_and_one_that_is_reverted_is_postponed() {
        let (mended, job) = (
            Mends::new(Pauses::default()),
            ("ml".to_owned(), "uid".to_owned()),
        );
        let says = |min_member| PodGroup {
            min_member,
            ..PodGroup::default()
        };
        let due = |min_member| mended.of_group(&job).due(&says(min_member));
        for min_member in [2, 3, 4] {
            assert_eq!(due(min_member), Mend::Now, "the job was scaled");
            mended.note_group(&job, Harm::Changed, &says(min_member));
        }
        assert!(matches!(due(4), Mend::Later(_)), "a webhook reverts it");
        assert_eq!(due(5), Mend::Now, "the job was scaled again");
        pass(&mended, Duration::from_mins(1));
        assert_eq!(due(4), Mend::Again);
        for _ in 0..2 {
            assert_eq!(mended.of_group(&job).deleted, Mend::Now);
            mended.note_group(&job, Harm::Deleted, &says(4));
        }
        assert!(matches!(mended.of_group(&job).deleted, Mend::Later(_)));
        mended.group_removed(&job);
        assert_eq!(mended.of_group(&job), GroupWrites::default(), "suspended");
    }
}
