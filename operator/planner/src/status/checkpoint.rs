//! What is known of checkpoints: shown in the status, and told when one fails.

use jiff::Timestamp;
use roundhouse_api::{CheckpointStatus, EventReason, TrainingJobStatus};
use roundhouse_contract::{BestCheckpoint, Progress};

use crate::draft::{Draft, event};
use crate::status::time;
use crate::validate::ValidatedJob;

/// Longest error that is shown, in bytes; the schema's bound.
const MAX_ERROR_BYTES: usize = 1_024;

/// Whether the status would be another one with what progress tells of checkpoints.
pub(crate) fn differs(job: &ValidatedJob, status: &TrainingJobStatus, progress: &Progress) -> bool {
    merged(job, status.checkpoint.clone(), progress) != status.checkpoint
}

/// Whether progress tells of trouble that the status does not.
#[must_use]
pub(crate) fn is_in_new_trouble(status: &TrainingJobStatus, progress: &Progress) -> bool {
    let known = status.checkpoint.as_ref().and_then(|it| it.error.as_ref());
    let told = told(progress).and_then(|it| it.error);
    told.is_some() && told.as_ref() != known
}

/// Takes over what progress tells. A failure is an event, once for each new error.
pub(crate) fn show(draft: &mut Draft<'_>, progress: &Progress) {
    let before = draft.status.checkpoint.take();
    let known_error = before.as_ref().and_then(|before| before.error.clone());
    let now = merged(draft.job, before, progress);
    let error = now.as_ref().and_then(|now| now.error.as_ref());
    if let Some(error) = error
        && known_error.as_ref() != Some(error)
    {
        let message = format!("trouble with checkpoints: {error}");
        draft
            .events
            .push(event(EventReason::CheckpointFailed, message));
    }
    draft.status.checkpoint = now;
}

/// What the status has to say, given what it says and what progress tells. The best checkpoint is there only as long
/// as the job keeps one by the same metric.
fn merged(
    job: &ValidatedJob,
    before: Option<CheckpointStatus>,
    progress: &Progress,
) -> Option<CheckpointStatus> {
    let metric = job.checkpoint.as_ref().and_then(|it| it.best);
    let is_kept = |best: &BestCheckpoint| metric.is_some_and(|it| it.metric == best.metric);
    let Some(mut now) = told(progress) else {
        let mut before = before?;
        before.best = before.best.filter(is_kept);
        return Some(before);
    };
    let before = before.unwrap_or_default();
    // A process that was resumed and could not write yet knows of none; the one before is still there.
    if now.step.is_none() {
        (now.step, now.time) = (before.step, before.time);
    }
    now.best = now.best.or(before.best).filter(is_kept);
    Some(now)
}

/// The end of a sentence about training: that it is not kept, if so.
pub(crate) fn warning(status: &TrainingJobStatus) -> String {
    let error = status
        .checkpoint
        .as_ref()
        .and_then(|checkpoint| checkpoint.error.as_ref());
    error.map_or_else(String::new, |error| {
        format!("; trouble with checkpoints: {error}")
    })
}

fn told(progress: &Progress) -> Option<CheckpointStatus> {
    let Progress {
        checkpoint_step: step,
        checkpoint_at,
        best_checkpoint: best,
        checkpoint_error,
        ..
    } = progress;
    let error = checkpoint_error.as_ref().map(|error| {
        let end = error.floor_char_boundary(MAX_ERROR_BYTES);
        error[..end].to_owned()
    });
    let at = checkpoint_at.as_ref().and_then(|at| at.parse().ok());
    (step.is_some() || error.is_some()).then(|| CheckpointStatus {
        step: *step,
        time: at.map(|at: Timestamp| time(at)),
        best: *best,
        error,
    })
}
