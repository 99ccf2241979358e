//! The deadlines of a job: its active time and its time to start. Both fail the job permanently, so
//! they are applied only to a state that the API server has confirmed: a cache may be stale after
//! an outage while time passes.

use std::time::Duration;

use roundhouse_api::{BlockReason, BlockedWrite, ConditionReason};

use crate::draft::Draft;
use crate::lifecycle::suspend;
use crate::plan::PlanReason;
use crate::status::{waiting, write_blocked};

/// Requeue interval while the API server has not confirmed the observed state.
const CONFIRM_AGAIN: Duration = Duration::from_secs(5);
/// Requeue interval while the clocks differ: a person has to set one of them.
const CLOCK_AGAIN: Duration = Duration::from_mins(5);

/// Whether the API server has confirmed the observed state and its clock agrees with the
/// operator's. Otherwise requeues the job.
pub(crate) fn is_confirmed(draft: &mut Draft<'_>) -> bool {
    if !is_fresh(draft) {
        return false;
    }
    if draft.observed.clock_off {
        draft.needs_fresh = true;
        draft.requeue(CLOCK_AGAIN);
    }
    !draft.observed.clock_off
}

/// Whether the API server has confirmed the observed state. Otherwise requeues the job.
pub(crate) fn is_fresh(draft: &mut Draft<'_>) -> bool {
    if !draft.observed.fresh {
        draft.needs_fresh = true;
        draft.requeue(CONFIRM_AGAIN);
    }
    draft.observed.fresh
}

/// Fails a job that has passed a deadline; otherwise requeues it for the next one.
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

/// Checks the start deadline. A job with enough workers for a generation is about to train, even
/// if they came late.
fn started_too_late(draft: &Draft<'_>) -> Option<(ConditionReason, String)> {
    let deadline = draft.job.start_deadline?;
    // A job that was never accepted has not started to wait.
    let has_begun = draft.status.start_time.is_some();
    let may_start = draft.is_starting() && !draft.is_queued();
    let is_over = has_begun && may_start && waiting::start_left(draft).is_none();
    let able = draft.members.able().len() as u64;
    if !is_over || able >= u64::from(draft.job.min_replicas) {
        return None;
    }
    let rejected = draft.rejection.map(|rejection| rejection.message.clone());
    let words = rejected.or_else(|| refused(draft));
    let words = words.unwrap_or_else(|| waiting::hold_up(draft).message());
    let seconds = deadline.as_secs();
    let message = format!("not enough workers were ready within {seconds} s: {words}");
    Some((ConditionReason::StartDeadlineExceeded, message))
}

/// Why the operator cannot create the workers, if the status says so.
fn refused(draft: &Draft<'_>) -> Option<String> {
    let mut blocked = draft.observed.status.blocked.iter();
    // A repair that another client reverts is tried again, and does not keep workers away for long.
    let is_final = |it: &&BlockedWrite| it.reason() != Some(BlockReason::RepairReverted);
    blocked.find(is_final).map(write_blocked::sentence)
}
