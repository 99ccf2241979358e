//! Pods that the operator created a short while ago. If one of them is missing soon after, the job
//! itself may be gone, and then the garbage collector deletes whatever is created for it. So the
//! operator asks the API server for the job before it creates the same pod again.

use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How long after the last creation the pods of a job count as recent.
const RECENT: Duration = Duration::from_mins(1);

/// Names of the pods of one job.
#[derive(Debug, Default)]
pub struct RecentPods {
    names: HashSet<String>,
    last: Option<Instant>,
}

impl RecentPods {
    /// The operator created a pod of this name.
    pub fn insert(&mut self, name: String) {
        if !self.are_recent() {
            self.names.clear();
        }
        self.names.insert(name);
        self.last = Some(Instant::now());
    }

    /// Whether the operator created one of these pods a short while ago.
    #[must_use]
    pub fn has_any(&self, pods: &[String]) -> bool {
        self.are_recent() && pods.iter().any(|name| self.names.contains(name))
    }

    fn are_recent(&self) -> bool {
        self.last.is_some_and(|last| last.elapsed() < RECENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_recent_for_a_while_after_the_last_creation() {
        let mut recent = RecentPods::default();
        let has = |recent: &RecentPods, name: &str| recent.has_any(&[name.to_owned()]);
        recent.insert("digits-worker-0-0".to_owned());
        assert!(has(&recent, "digits-worker-0-0"));
        assert!(!has(&recent, "digits-worker-0-1"));
        recent.last = Instant::now().checked_sub(RECENT);
        assert!(!has(&recent, "digits-worker-0-0"));
        recent.insert("digits-worker-1-0".to_owned());
        assert!(!has(&recent, "digits-worker-0-0") && has(&recent, "digits-worker-1-0"));
    }
}
