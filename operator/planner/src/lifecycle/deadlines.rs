//! The job's deadlines: to be active, and to start. Both end the job for good, so they are decided only on what the API
//! server has confirmed: a cache may be old after an outage, and time passes meanwhile.

use std::time::Duration;

use roundhouse_api::{ConditionReason, ConditionType};

use crate::draft::Draft;
use crate::lifecycle::suspend;
use crate::plan::PlanReason;
use crate::status::waiting;

/// When to look again if the API server did not confirm what was observed.
const CONFIRM_AGAIN: Duration = Duration::from_secs(5);
/// The same while clocks differ: somebody has to set one.
const CLOCK_AGAIN: Duration = Duration::from_mins(5);

/// Whether the API server has confirmed what was observed, and its clock is that by which time is over; else looks again.
pub(crate) fn is_confirmed(draft: &mut Draft<'_>) -> bool {
    if draft.observed.fresh && !draft.observed.clock_off {
        return true;
    }
    draft.needs_fresh = true;
    draft.requeue(if draft.observed.clock_off {
        CLOCK_AGAIN
    } else {
        CONFIRM_AGAIN
    });
    false
}

/// Gives up the job that has passed one of them; else looks again at the next.
pub(crate) fn too_late(draft: &mut Draft<'_>) -> Option<PlanReason> {
    let (reason, message) = active_too_long(draft).or_else(|| started_too_late(draft))?;
    if !is_confirmed(draft) {
        return None;
    }
    Some(draft.fail(reason, message))
}

fn active_too_long(draft: &mut Draft<'_>) -> Option<(ConditionReason, String)> {
    let deadline = draft.job.active_deadline?;
    let left = deadline.saturating_sub(suspend::active(draft));
    if !left.is_zero() {
        draft.requeue(left);
        return None;
    }
    let seconds = deadline.as_secs();
    let message = format!("the job was active for {seconds} s, its activeDeadlineSeconds");
    Some((ConditionReason::DeadlineExceeded, message))
}

/// A job with enough workers for a generation is about to train, however late they came.
fn started_too_late(draft: &Draft<'_>) -> Option<(ConditionReason, String)> {
    let deadline = draft.job.start_deadline?;
    // A job that was never accepted has not begun to wait.
    let has_begun = draft.status.start_time.is_some();
    let may_start = draft.is_starting() && !draft.is_queued();
    let is_over = has_begun && may_start && waiting::start_left(draft).is_none();
    let able = draft.members.able().len() as u64;
    if !is_over || able >= u64::from(draft.job.min_replicas) {
        return None;
    }
    let rejected = draft.rejection.map(|rejection| rejection.message.clone());
    let words = rejected.or_else(|| refused(draft));
    let words = words.unwrap_or_else(|| waiting::hold_up(draft).1);
    let seconds = deadline.as_secs();
    let message = format!("not enough workers were ready within {seconds} s: {words}");
    Some((ConditionReason::StartDeadlineExceeded, message))
}

/// Why the workers cannot be made, if that is what the status says.
fn refused(draft: &Draft<'_>) -> Option<String> {
    let running = draft.observed.status.condition(ConditionType::Running)?;
    let reasons = [
        ConditionReason::Refused,
        ConditionReason::NameTaken,
        ConditionReason::GangSchedulerMissing,
    ];
    let is_told = reasons.iter().any(|it| running.reason == it.as_str());
    is_told.then(|| running.message.clone())
}
