//! The job's deadlines: to be active, and to start.

use roundhouse_api::{ConditionReason, ConditionType};

use crate::draft::Draft;
use crate::plan::PlanReason;
use crate::{suspend, waiting};

/// Gives up the job that has passed one of them; else looks again at the next.
pub(crate) fn too_late(draft: &mut Draft<'_>) -> Option<PlanReason> {
    if let Some(deadline) = draft.job.active_deadline {
        let left = deadline.saturating_sub(suspend::active(draft));
        if left.is_zero() {
            let seconds = deadline.as_secs();
            let message = format!("the job was active for {seconds} s, its activeDeadlineSeconds");
            return Some(draft.fail(ConditionReason::DeadlineExceeded, message));
        }
        draft.requeue(left);
    }
    if let Some(deadline) = draft.job.start_deadline
        && draft.is_starting()
        && waiting::start_deadline_left(draft).is_none()
    {
        let words = refused(draft).unwrap_or_else(|| waiting::hold_up(draft).1);
        let seconds = deadline.as_secs();
        let message = format!("not enough workers were ready within {seconds} s: {words}");
        return Some(draft.fail(ConditionReason::StartDeadlineExceeded, message));
    }
    None
}

/// Why the API server would not have the workers, if that is what the status says.
fn refused(draft: &Draft<'_>) -> Option<String> {
    let running = draft.observed.status.condition(ConditionType::Running)?;
    (running.reason == ConditionReason::Refused.as_str()).then(|| running.message.clone())
}
