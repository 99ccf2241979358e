//! Shows in the status what progress reports about checkpoints, and publishes an event when one
//! fails.

use jiff::Timestamp;
use roundhouse_api::{CheckpointStatus, EventReason, TrainingJobStatus};
use roundhouse_contract::{BestCheckpoint, Progress};

use crate::draft::{Draft, event};
use crate::status::time;
use crate::validate::ValidatedJob;

/// Longest error in the status, in bytes; the schema's bound.
const MAX_ERROR_BYTES: usize = 1_024;

/// Whether the report about checkpoints would change the status.
pub(crate) fn differs(job: &ValidatedJob, status: &TrainingJobStatus, progress: &Progress) -> bool {
    merged(job, status.checkpoint.clone(), progress) != status.checkpoint
}

/// Whether progress reports an error that the status does not have.
#[must_use]
pub(crate) fn is_in_new_trouble(status: &TrainingJobStatus, progress: &Progress) -> bool {
    let known = status.checkpoint.as_ref().and_then(|it| it.error.as_ref());
    let error = reported(progress).and_then(|it| it.error);
    error.is_some() && error.as_ref() != known
}

/// Copies the report into the status. Each new error is one event.
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

/// Merges the status with the report. The best checkpoint stays only while the job keeps one
/// by the same metric.
fn merged(
    job: &ValidatedJob,
    before: Option<CheckpointStatus>,
    progress: &Progress,
) -> Option<CheckpointStatus> {
    let metric = job.checkpoint.as_ref().and_then(|it| it.best);
    let is_kept = |best: &BestCheckpoint| metric.is_some_and(|it| it.metric == best.metric);
    let Some(mut now) = reported(progress) else {
        let mut before = before?;
        before.best = before.best.filter(is_kept);
        return Some(before);
    };
    let before = before.unwrap_or_default();
    // A resumed process that has not saved yet reports no checkpoint; the earlier one still exists.
    if now.step.is_none() {
        (now.step, now.time) = (before.step, before.time);
    }
    now.best = now.best.or(before.best).filter(is_kept);
    Some(now)
}

/// A suffix for the message about training, if checkpoints fail.
pub(crate) fn warning(status: &TrainingJobStatus) -> String {
    let error = status
        .checkpoint
        .as_ref()
        .and_then(|checkpoint| checkpoint.error.as_ref());
    error.map_or_else(String::new, |error| {
        format!("; trouble with checkpoints: {error}")
    })
}

fn reported(progress: &Progress) -> Option<CheckpointStatus> {
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
