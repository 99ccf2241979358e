//! Events of a status whose write got no answer. If the job turns out to have that status, they are told then.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roundhouse_api::TrainingJobStatus;
use roundhouse_planner::Event;

use crate::job::JobKey;

/// A job that has not come back by then is gone.
const FORGOTTEN: Duration = Duration::from_mins(5);

/// The events, by job.
#[derive(Debug, Default)]
pub struct UnsentEvents(Mutex<HashMap<JobKey, Write>>);

#[derive(Debug)]
struct Write {
    status: TrainingJobStatus,
    events: Vec<Event>,
    at: Instant,
}

impl UnsentEvents {
    /// This status may have been stored; these events tell of it.
    pub fn keep(&self, job: &JobKey, status: &TrainingJobStatus, events: &[Event]) {
        let mut all = self.lock();
        all.retain(|_, write| write.at.elapsed() < FORGOTTEN);
        // A write without events leaves those of an earlier one, which may still turn out to be stored.
        if !events.is_empty() {
            let write = Write {
                status: status.clone(),
                events: events.to_vec(),
                at: Instant::now(),
            };
            all.insert(job.clone(), write);
        }
    }

    /// The job has this status: events of its write that were not told yet.
    pub fn stored(&self, job: &JobKey, status: &TrainingJobStatus) -> Vec<Event> {
        let mut all = self.lock();
        if all.get(job).is_none_or(|write| write.status != *status) {
            return Vec::new();
        }
        all.remove(job)
            .map(|write| write.events)
            .unwrap_or_default()
    }

    /// The events of the job's newest write are told.
    pub fn told(&self, job: &JobKey) {
        self.lock().remove(job);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Write>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_planner::EventType;

    use super::*;

    fn status(total: u32) -> TrainingJobStatus {
        let mut status = TrainingJobStatus::default();
        status.incidents.total = total;
        status
    }

    #[test]
    fn events_are_told_once_and_only_when_their_status_is_stored() {
        let (untold, job) = (UnsentEvents::default(), JobKey::new("ml", "uid"));
        let events = [Event {
            kind: EventType::Warning,
            reason: "Incident".to_owned(),
            message: "worker 0 failed".to_owned(),
        }];
        untold.keep(&job, &status(1), &events);
        assert!(untold.stored(&job, &status(0)).is_empty(), "not yet seen");
        assert_eq!(untold.stored(&job, &status(1)), events);
        assert!(untold.stored(&job, &status(1)).is_empty(), "told");
        untold.keep(&job, &status(2), &events);
        untold.told(&job);
        assert!(untold.stored(&job, &status(2)).is_empty(), "written again");
    }
}
