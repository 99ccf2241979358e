//! Names that a job needs and somebody else's object bears. Whoever held one may be gone a moment later (a
//! job of the same name that is being cleaned up, say), so it is tried again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::job::JobKey;

/// How long a name counts as taken without another look.
const TTL: Duration = Duration::from_secs(4);

/// Names, as `Kind name`, and when each was seen.
type Names = BTreeMap<String, Instant>;

/// Taken names by job.
#[derive(Debug, Default)]
pub struct TakenNames(Mutex<HashMap<JobKey, Names>>);

impl TakenNames {
    /// A name turned out to be taken.
    pub fn insert(&self, job: &JobKey, what: String) {
        let mut all = self.lock();
        all.retain(|_, names| names.values().any(|seen| seen.elapsed() < TTL));
        let names = all.entry(job.clone()).or_default();
        names.retain(|_, seen| seen.elapsed() < TTL);
        names.insert(what, Instant::now());
    }

    /// What the job cannot have now.
    pub fn of(&self, job: &JobKey) -> Vec<String> {
        let all = self.lock();
        let names = all.get(job).into_iter().flatten();
        let now = names.filter(|(_, seen)| seen.elapsed() < TTL);
        now.map(|(what, _)| what.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Names>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_taken_name_is_tried_again_after_a_while() {
        let (taken, job) = (TakenNames::default(), JobKey::new("ns", "uid"));
        taken.insert(&job, "Service digits".to_owned());
        taken.insert(&job, "Pod digits-worker-0-0".to_owned());
        assert_eq!(taken.of(&job), ["Pod digits-worker-0-0", "Service digits"]);
        let long_ago = Instant::now().checked_sub(TTL).unwrap();
        let mut all = taken.lock();
        let names = all.get_mut(&job).unwrap();
        names.insert("Service digits".to_owned(), long_ago);
        drop(all);
        assert_eq!(taken.of(&job), ["Pod digits-worker-0-0"]);
    }
}
