//! `ttlSecondsAfterFinished`: the operator deletes the TrainingJob some time after its end, and
//! Kubernetes deletes what it owns. A deletion cannot be undone, so it needs a state that the API
//! server has confirmed: a clock that jumped ahead, or an edit that the cache does not show yet,
//! must not delete a job.

use std::time::Duration;

use crate::draft::Draft;
use crate::lifecycle::deadlines::is_confirmed;
use crate::plan::Action;
use crate::status::time_left;

/// Longest requeue interval, since the clock may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_hours(24);

/// Deletes a job whose time to live is over; otherwise requeues it for that time.
pub(crate) fn expire(draft: &mut Draft<'_>) {
    let ended = draft.status.completion_time.as_ref();
    let Some((ended, ttl)) = ended.zip(draft.job.ttl_after_finished) else {
        return;
    };
    if let Some(left) = time_left(ended.0, ttl, draft.now) {
        return draft.requeue(left.min(LONGEST_SLEEP));
    }
    if !is_confirmed(draft) {
        return;
    }
    draft.actions.push(Action::DeleteJob {
        uid: draft.job.identity.uid.clone(),
        resource_version: draft.observed.resource_version.clone(),
    });
}
