//! What was mended of the jobs' objects, and when. Another controller or a webhook may undo it at once, each time: the
//! pauses between two mends of one object grow.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roundhouse_planner::Mend;

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

#[derive(Clone, Copy, Debug)]
struct Last {
    at: Instant,
    pause: Duration,
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
        let Pauses { first, longest } = self.pauses;
        let mut all = self.lock();
        all.retain(|_, last| last.at.elapsed() < self.pauses.memory());
        let object = (job.clone(), what, harm);
        let pause = match (all.get(&object), harm) {
            (Some(last), _) => longest.min(first.max(last.pause * 2)),
            (None, Harm::Changed) => first,
            // It may be made for the first time: whoever deletes it then has undone nothing.
            (None, Harm::Deleted) => Duration::ZERO,
        };
        let at = Instant::now();
        all.insert(object, Last { at, pause });
    }

    /// When an object is to be mended that is not as it was made, or is to be made that is not there.
    #[must_use]
    pub fn next(&self, job: &Job, what: Written, harm: Harm) -> Mend {
        let last = self.lock().get(&(job.clone(), what, harm)).copied();
        let last = last.map(|last| (last.at.elapsed(), last.pause));
        match last {
            Some((_, Duration::ZERO)) => Mend::Now,
            Some((age, pause)) if age < pause => Mend::Later(pause.saturating_sub(age)),
            Some((age, _)) if age < self.pauses.memory() => Mend::Again,
            Some(_) | None => Mend::Now,
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
}
