//! Plans of which the API server has not made a part: the user is told, once.

use jiff::Timestamp;
use roundhouse_api::{ConditionReason, ConditionType, EventReason, TrainingJobStatus};

use crate::draft::event;
use crate::plan::Plan;
use crate::status::{gist, set_condition, set_state};

/// What the API server's words follow in a message.
const REFUSED: &str = "the API server refused: ";
const NO_ANSWER: &str = "the API server does not answer: ";
const UNDONE: &str = "the API server stored something else: ";

/// Why a write was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteBlocked {
    /// It refused: its words.
    Refused(String),
    /// It did not answer in time, most often because an admission webhook is slow: what was asked of it.
    NoAnswer(String),
    /// It stored something else, most often because an admission webhook changed it: what is not as it was written.
    Undone(String),
}

impl WriteBlocked {
    fn sentence(&self) -> String {
        match self {
            Self::Refused(words) => format!("{REFUSED}{words}"),
            Self::NoAnswer(words) => format!("{NO_ANSWER}{words}"),
            Self::Undone(words) => format!("{UNDONE}{words}"),
        }
    }

    /// The obstacle that a status tells of. While the next try is under way it is still there.
    #[must_use]
    pub fn told_in(status: &TrainingJobStatus) -> Option<Self> {
        let message = &status.condition(ConditionType::Running)?.message;
        let after = |prefix| Some(message.split_once(prefix)?.1.to_owned());
        let refused = after(REFUSED).map(Self::Refused);
        refused
            .or_else(|| after(NO_ANSWER).map(Self::NoAnswer))
            .or_else(|| after(UNDONE).map(Self::Undone))
    }
}

/// A plan of which the API server has not made a part: the status says why, once. What the plan has decided is stored,
/// so that nothing is decided twice. Workers that train continue, and the status says so. `before`: the status as last
/// written.
#[must_use]
pub fn plan_refused(
    plan: &Plan,
    before: &TrainingJobStatus,
    obstacle: &WriteBlocked,
    now: Timestamp,
) -> Plan {
    let mut refused = plan.without_replacements();
    let words = obstacle.sentence();
    let told =
        WriteBlocked::told_in(before).is_some_and(|told| gist(&told.sentence()) == gist(&words));
    let kind = ConditionType::Running;
    let trains = refused.status.condition(kind).cloned();
    let trains = trains.filter(|running| running.status == "True");
    let status = &mut refused.status;
    match trains {
        _ if status.is_terminal() => {}
        Some(running) => {
            let message = format!("{}; {words}", running.message);
            set_condition(status, kind, true, ConditionReason::Training, message, now);
        }
        None => {
            let before = status.condition(kind);
            let queued = ConditionReason::SchedulingGated;
            let is_queued = before.is_some_and(|before| before.reason == queued.as_str());
            // The clocks of a job in a queue stand still by its reason.
            let (reason, message) = match before {
                Some(before) if is_queued => (queued, format!("{}; {words}", before.message)),
                _ => (ConditionReason::Refused, words.clone()),
            };
            set_condition(status, kind, false, reason, message, now);
        }
    }
    set_state(status);
    // Nothing waits for a pod of a job that has ended, and its status has no room to say that this was told.
    let is_noise = matches!(obstacle, WriteBlocked::NoAnswer(_)) && refused.status.is_terminal();
    if !told && !is_noise {
        refused.events.push(event(EventReason::Refused, words));
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanReason;

    fn refusal(words: &str) -> WriteBlocked {
        WriteBlocked::Refused(words.to_owned())
    }

    /// A plan whose status says whether the job trains.
    fn planned(trains: bool) -> Plan {
        let mut status = TrainingJobStatus::default();
        let (reason, message) = if trains {
            (ConditionReason::Training, "generation 1: 3 workers")
        } else {
            (ConditionReason::WaitingForWorkers, "1 of 4 workers ready")
        };
        let kind = ConditionType::Running;
        let (now, events) = (Timestamp::UNIX_EPOCH, Vec::new());
        set_condition(&mut status, kind, trains, reason, message, now);
        Plan {
            actions: Vec::new(),
            status,
            requeue_after: None,
            reason: PlanReason::Training,
            events,
            seen_replacements: None,
            needs_fresh: false,
        }
    }

    #[test]
    fn no_answer_is_told_once_like_a_refusal_and_is_another_obstacle_than_one() {
        let (plan, now) = (planned(false), Timestamp::UNIX_EPOCH);
        let slow = WriteBlocked::NoAnswer("creation of Pod digits-worker-0-0".to_owned());
        let first = plan_refused(&plan, &plan.status, &slow, now);
        let front = first.status.front().unwrap();
        assert!(front.message.starts_with(NO_ANSWER), "{front:?}");
        let cases = [(slow, 0), (refusal("creation of Pod digits-worker-0-0"), 1)];
        for (obstacle, events) in cases {
            let next = plan_refused(&plan, &first.status, &obstacle, now);
            assert_eq!(next.events.len(), events, "{obstacle:?}");
        }
    }

    #[test]
    fn what_was_told_stays_while_the_next_try_goes_on() {
        let now = Timestamp::UNIX_EPOCH;
        for trains in [true, false] {
            let plan = planned(trains);
            assert_eq!(WriteBlocked::told_in(&plan.status), None);
            for obstacle in [
                refusal("denied: by a.b"),
                WriteBlocked::NoAnswer("x".to_owned()),
                WriteBlocked::Undone("annotation a of Pod b".to_owned()),
            ] {
                let told = plan_refused(&plan, &plan.status, &obstacle, now).status;
                let still = WriteBlocked::told_in(&told).unwrap();
                assert_eq!(still, obstacle);
                let next = plan_refused(&plan, &told, &still, now);
                assert_eq!((next.status, next.events.len()), (told, 0));
            }
        }
    }

    #[test]
    fn a_job_that_trains_says_so_and_names_what_was_refused() {
        let cases = [
            (
                true,
                "Training",
                "generation 1: 3 workers; the API server refused: used: 3",
            ),
            (false, "Refused", "the API server refused: used: 3"),
        ];
        for (trains, reason, message) in cases {
            let (plan, now) = (planned(trains), Timestamp::UNIX_EPOCH);
            let refused = plan_refused(&plan, &plan.status, &refusal("used: 3"), now);
            let front = refused.status.front().unwrap();
            assert_eq!((&*front.reason, &*front.message), (reason, message));
            assert_eq!(refused.status.is_true(ConditionType::Running), trains);
        }
    }

    #[test]
    fn a_refusal_is_an_event_when_it_begins_and_when_it_becomes_another() {
        let now = Timestamp::UNIX_EPOCH;
        let cases = [
            ("used: 3", 0, "the same"),
            ("used: 4", 0, "the same with another number"),
            ("denied", 1, "another"),
        ];
        for trains in [true, false] {
            let plan = planned(trains);
            let first = plan_refused(&plan, &plan.status, &refusal("used: 3"), now);
            assert_eq!(first.events.len(), 1);
            for (words, events, case) in cases {
                let next = plan_refused(&plan, &first.status, &refusal(words), now);
                assert_eq!(next.events.len(), events, "{case}");
            }
            let same = plan_refused(&plan, &first.status, &refusal("used: 3"), now);
            assert_eq!(same.status, first.status, "nothing to write");
        }
    }
}
