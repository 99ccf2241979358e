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
    /// When a mend was not the last one, somebody undoes them. After so long nobody does.
    fn memory(self) -> Duration {
        self.longest * 2
    }
}

/// The last mend of each object.
#[derive(Debug)]
pub struct Mended {
    pauses: Pauses,
    last: Mutex<HashMap<(Job, Written), Last>>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    at: Instant,
    pause: Duration,
}

impl Mended {
    /// Of an operator that has just started.
    #[must_use]
    pub fn new(pauses: Pauses) -> Self {
        let last = Mutex::default();
        Self { pauses, last }
    }

    /// An object was mended.
    pub fn note(&self, job: &Job, what: Written) {
        let Pauses { first, longest } = self.pauses;
        let mut all = self.lock();
        all.retain(|_, last| last.at.elapsed() < self.pauses.memory());
        let before = all.get(&(job.clone(), what.clone()));
        let pause = before.map_or(first, |last| longest.min(last.pause * 2));
        let at = Instant::now();
        all.insert((job.clone(), what), Last { at, pause });
    }

    /// When an object that is not as it was made is to be mended.
    #[must_use]
    pub fn next(&self, job: &Job, what: Written) -> Mend {
        let last = self.lock().get(&(job.clone(), what)).copied();
        let last = last.map(|last| (last.at.elapsed(), last.pause));
        match last {
            Some((age, pause)) if age < pause => Mend::Later(pause.saturating_sub(age)),
            Some((age, _)) if age < self.pauses.memory() => Mend::Again,
            Some(_) | None => Mend::Now,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Job, Written), Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that was mended was mended so long before.
    fn pass(mended: &Mended, span: Duration) {
        for last in mended.lock().values_mut() {
            last.at = last.at.checked_sub(span).unwrap();
        }
    }

    #[test]
    fn who_undoes_what_is_mended_waits_twice_as_long_each_time_until_an_hour() {
        let (mended, job) = (
            Mended::new(Pauses::default()),
            ("ml".to_owned(), "uid".to_owned()),
        );
        let next = || mended.next(&job, Written::Service);
        assert_eq!(next(), Mend::Now);
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            mended.note(&job, Written::Service);
            pass(&mended, Duration::from_mins(minutes - 1));
            assert!(matches!(next(), Mend::Later(_)), "{minutes}");
            pass(&mended, Duration::from_mins(1));
            assert_eq!(next(), Mend::Again, "{minutes}");
        }
        let other = ("ml".to_owned(), "another".to_owned());
        assert_eq!(mended.next(&other, Written::Service), Mend::Now);
        assert_eq!(mended.next(&job, Written::NetworkPolicy), Mend::Now);
        pass(&mended, Duration::from_hours(2));
        assert_eq!(next(), Mend::Now, "it was well for long");
        mended.note(&other, Written::Service);
        assert_eq!(mended.lock().len(), 1, "nothing is left of the old one");
    }
}
