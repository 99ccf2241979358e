//! Events of a status whose write got no answer. If the job turns out to have that status, the
//! operator publishes them.

use roundhouse_api::TrainingJobStatus;
use roundhouse_planner::Event;

/// The events of the last such write of one job.
#[derive(Debug, Default)]
pub struct UnsentEvents(Option<Write>);

#[derive(Debug)]
struct Write {
    status: TrainingJobStatus,
    events: Vec<Event>,
}

impl UnsentEvents {
    /// The API server may have stored this status, which these events describe.
    pub fn keep(&mut self, status: &TrainingJobStatus, events: &[Event]) {
        // A write without events leaves those of an earlier one, which may still turn out to be
        // stored.
        if !events.is_empty() {
            self.0 = Some(Write {
                status: status.clone(),
                events: events.to_vec(),
            });
        }
    }

    /// The job has this status. Returns the events of its write that are not published yet.
    pub fn stored(&mut self, status: &TrainingJobStatus) -> Vec<Event> {
        let write = self.0.take_if(|write| write.status == *status);
        write.map(|write| write.events).unwrap_or_default()
    }

    /// The events of the newest write are published.
    pub fn published(&mut self) {
        self.0 = None;
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
    fn unsent_events_are_published_once_their_status_is_stored() {
        let mut unsent = UnsentEvents::default();
        let events = [Event {
            kind: EventType::Warning,
            reason: "Incident".to_owned(),
            message: "worker 0 failed".to_owned(),
        }];
        unsent.keep(&status(1), &events);
        assert!(unsent.stored(&status(0)).is_empty(), "not yet seen");
        assert_eq!(unsent.stored(&status(1)), events);
        assert!(unsent.stored(&status(1)).is_empty(), "published");
        unsent.keep(&status(2), &events);
        unsent.published();
        assert!(unsent.stored(&status(2)).is_empty(), "written again");
    }
}
