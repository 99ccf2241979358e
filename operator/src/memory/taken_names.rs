//! Names that a job needs and another object has. That object may be gone a moment later, because
//! it belongs to a job of the same name that is being cleaned up, for example. So the operator soon
//! tries the name again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a name counts as taken until the operator tries it again.
const TTL: Duration = Duration::from_secs(4);

/// The taken names of one job, as `Kind name`, and when the operator found each of them taken.
#[derive(Debug, Default)]
pub struct TakenNames(BTreeMap<String, Instant>);

impl TakenNames {
    /// The operator found this name taken.
    pub fn insert(&mut self, what: String) {
        self.0.retain(|_, seen| seen.elapsed() < TTL);
        self.0.insert(what, Instant::now());
    }

    /// The names that the job cannot have now.
    #[must_use]
    pub fn current(&self) -> Vec<String> {
        let current = self.0.iter().filter(|(_, seen)| seen.elapsed() < TTL);
        current.map(|(what, _)| what.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_taken_name_is_tried_again_after_a_while() {
        let mut taken = TakenNames::default();
        taken.insert("Service digits".to_owned());
        taken.insert("Pod digits-worker-0-0".to_owned());
        assert_eq!(taken.current(), ["Pod digits-worker-0-0", "Service digits"]);
        let long_ago = Instant::now().checked_sub(TTL).unwrap();
        taken.0.insert("Service digits".to_owned(), long_ago);
        assert_eq!(taken.current(), ["Pod digits-worker-0-0"]);
    }
}
