//! `ttlSecondsAfterFinished`: the TrainingJob itself is deleted some time after its end, and Kubernetes deletes what it owns.
//! That cannot be taken back, so it is decided only on what the API server has confirmed: a clock that jumped ahead or an
//! edit that the cache has not seen must not cost anybody a job.

use std::time::Duration;

use crate::draft::Draft;
use crate::lifecycle::deadlines::is_confirmed;
use crate::plan::Action;
use crate::status::time_left;

/// How long to sleep at most: the clock may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_hours(24);

/// Deletes a job whose time after the end is over; else looks again when it is.
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
