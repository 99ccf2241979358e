//! Names that a job needs and somebody else's object bears. Whoever held one may be gone a moment later (a
//! job of the same name that is being cleaned up, say), so it is tried again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cache::Job;

/// How long a name counts as taken without another look.
const TTL: Duration = Duration::from_secs(4);

/// Taken names by job, as `Kind name`.
#[derive(Debug, Default)]
pub struct Taken(Mutex<HashMap<Job, (String, Instant)>>);

impl Taken {
    /// A name turned out to be taken.
    pub fn insert(&self, job: &Job, what: String) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (_, seen)| seen.elapsed() < TTL);
        all.insert(job.clone(), (what, Instant::now()));
    }

    /// What the job cannot have now.
    pub fn of(&self, job: &Job) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (what, seen) = all.get(job)?;
        (seen.elapsed() < TTL).then(|| what.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_name_is_tried_again_after_a_while() {
        let (taken, job) = (Taken::default(), ("ns".to_owned(), "uid".to_owned()));
        taken.insert(&job, "Service digits".to_owned());
        assert_eq!(taken.of(&job).as_deref(), Some("Service digits"));
        let long_ago = Instant::now().checked_sub(TTL).unwrap();
        taken.0.lock().unwrap().get_mut(&job).unwrap().1 = long_ago;
        assert_eq!(taken.of(&job), None);
    }
}
