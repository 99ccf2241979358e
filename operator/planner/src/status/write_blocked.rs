//! Plans that the API server has carried out in part only: the status says why, and an event is
//! published once.

use jiff::Timestamp;
use roundhouse_api::{
    BlockReason, BlockedWrite, ConditionReason, ConditionType, EventReason, TrainingJobStatus,
};

use crate::draft::event;
use crate::plan::Plan;
use crate::status::{bounded, gist, set_condition, set_state};

/// Why a write had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteBlocked {
    /// The API server refused it with this message.
    Refused(String),
    /// The API server did not answer this write in time, most often because an admission webhook is
    /// slow.
    NoAnswer(String),
    /// The API server stored an object that differs in this, most often because an admission
    /// webhook changed it.
    Undone(String),
}

impl WriteBlocked {
    fn parts(&self) -> (BlockReason, &str) {
        match self {
            Self::Refused(words) => (BlockReason::Refused, words),
            Self::NoAnswer(words) => (BlockReason::NoAnswer, words),
            Self::Undone(words) => (BlockReason::Undone, words),
        }
    }

    fn stored(&self) -> BlockedWrite {
        let (reason, words) = self.parts();
        BlockedWrite::new(reason, bounded(words.to_owned()))
    }

    /// The write that is blocked according to a status. While the next try continues, it still is.
    #[must_use]
    pub fn of(status: &TrainingJobStatus) -> Option<Self> {
        status.blocked.iter().find_map(Self::stored_in)
    }

    fn stored_in(blocked: &BlockedWrite) -> Option<Self> {
        let words = || blocked.message.clone();
        match blocked.reason()? {
            BlockReason::Refused => Some(Self::Refused(words())),
            BlockReason::NoAnswer => Some(Self::NoAnswer(words())),
            BlockReason::Undone => Some(Self::Undone(words())),
            BlockReason::NameTaken
            | BlockReason::GangSchedulerMissing
            | BlockReason::RepairReverted => None,
        }
    }
}

/// The sentence of a blocked write.
pub(crate) fn sentence(blocked: &BlockedWrite) -> String {
    let words = &blocked.message;
    match blocked.reason() {
        Some(BlockReason::Refused) => format!("the API server refused: {words}"),
        Some(BlockReason::NoAnswer) => format!("the API server does not answer: {words}"),
        Some(BlockReason::Undone) => format!("the API server stored something else: {words}"),
        Some(
            BlockReason::NameTaken
            | BlockReason::GangSchedulerMissing
            | BlockReason::RepairReverted,
        )
        | None => words.clone(),
    }
}

/// The plan to store if the API server has not carried out a part of `plan`. Its status says why,
/// and contains the plan's decisions, so that the next plan does not repeat them. Workers that
/// train continue, and the status says so. `before` is the status as last written.
#[must_use]
pub fn plan_refused(
    plan: &Plan,
    before: &TrainingJobStatus,
    obstacle: &WriteBlocked,
    now: Timestamp,
) -> Plan {
    let mut refused = plan.without_replacements();
    let blocked = obstacle.stored();
    let words = sentence(&blocked);
    let is_same = |known: &BlockedWrite| {
        known.reason == blocked.reason && gist(&known.message) == gist(&blocked.message)
    };
    let is_known = before.blocked.iter().any(is_same);
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
            // A job in a queue waits for the queue first.
            let (reason, message) = match before {
                Some(before) if is_queued => (queued, format!("{}; {words}", before.message)),
                _ => (ConditionReason::Refused, words.clone()),
            };
            set_condition(status, kind, false, reason, message, now);
        }
    }
    if !status.is_terminal() {
        status
            .blocked
            .retain(|known| WriteBlocked::stored_in(known).is_none());
        status.blocked.push(blocked);
    }
    set_state(status);
    // Nothing waits for the pods of a finished job. Its status changes no more, so this would
    // publish the event each time.
    let is_noise = matches!(obstacle, WriteBlocked::NoAnswer(_)) && refused.status.is_terminal();
    if !is_known && !is_noise {
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
    fn timeout_and_refusal_are_reported_once_each() {
        let (plan, now) = (planned(false), Timestamp::UNIX_EPOCH);
        let slow = WriteBlocked::NoAnswer("creation of Pod digits-worker-0-0".to_owned());
        let first = plan_refused(&plan, &plan.status, &slow, now);
        let front = first.status.front().unwrap();
        let expected = "the API server does not answer: creation";
        assert!(front.message.starts_with(expected), "{front:?}");
        let cases = [(slow, 0), (refusal("creation of Pod digits-worker-0-0"), 1)];
        for (obstacle, events) in cases {
            let next = plan_refused(&plan, &first.status, &obstacle, now);
            assert_eq!(next.events.len(), events, "{obstacle:?}");
        }
    }

    #[test]
    fn reported_block_stays_during_the_next_attempt() {
        let now = Timestamp::UNIX_EPOCH;
        for trains in [true, false] {
            let plan = planned(trains);
            assert_eq!(WriteBlocked::of(&plan.status), None);
            for obstacle in [
                refusal("denied: by a.b"),
                WriteBlocked::NoAnswer("x".to_owned()),
                WriteBlocked::Undone("annotation a of Pod b".to_owned()),
            ] {
                let reported = plan_refused(&plan, &plan.status, &obstacle, now).status;
                let still = WriteBlocked::of(&reported).unwrap();
                assert_eq!(still, obstacle);
                let next = plan_refused(&plan, &reported, &still, now);
                assert_eq!((next.status, next.events.len()), (reported, 0));
            }
        }
    }

    #[test]
    fn training_job_still_trains_and_names_the_refusal() {
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
    fn refusal_is_an_event_when_it_begins_or_changes() {
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

    #[test]
    fn status_lists_one_write_and_keeps_other_blocks() {
        let (mut plan, now) = (planned(false), Timestamp::UNIX_EPOCH);
        let taken = BlockedWrite::new(BlockReason::NameTaken, "Service digits exists");
        plan.status.blocked.push(taken.clone());
        for words in ["used: 3", "denied"] {
            plan = plan_refused(&plan, &plan.status, &refusal(words), now);
            let denied = BlockedWrite::new(BlockReason::Refused, words);
            assert_eq!(plan.status.blocked, [taken.clone(), denied]);
        }
    }
}
