//! What is known of checkpoints: shown in the status, and told when one fails.

use jiff::Timestamp;
use roundhouse_api::{CheckpointStatus, TrainingJobStatus};
use roundhouse_contract::Progress;

use crate::draft::{Draft, event};
use crate::plan::EventType;
use crate::status::time;

/// Longest error that is shown, in bytes; the schema's bound.
const MAX_ERROR_BYTES: usize = 1_024;

/// Whether progress tells something of checkpoints that the status does not.
pub(crate) fn differs(status: &TrainingJobStatus, progress: &Progress) -> bool {
    let told = told(progress);
    told.is_some() && told != status.checkpoint
}

/// Whether progress tells of trouble that the status does not.
#[must_use]
pub fn is_in_new_trouble(status: &TrainingJobStatus, progress: &Progress) -> bool {
    let known = status.checkpoint.as_ref().and_then(|it| it.error.as_ref());
    let told = told(progress).and_then(|it| it.error);
    told.is_some() && told.as_ref() != known
}

/// Takes over what progress tells. A failure is an event, once for each new error.
pub(crate) fn show(draft: &mut Draft<'_>, progress: &Progress) {
    let Some(mut told) = told(progress) else {
        return;
    };
    let before = draft.status.checkpoint.take().unwrap_or_default();
    // A process that was resumed and could not write yet knows of none; the one before is still there.
    if told.step.is_none() {
        (told.step, told.time) = (before.step, before.time);
    }
    told.best = told.best.or(before.best);
    if let Some(error) = &told.error
        && before.error.as_ref() != Some(error)
    {
        let message = format!("trouble with checkpoints: {error}");
        draft
            .events
            .push(event(EventType::Warning, "CheckpointFailed", message));
    }
    draft.status.checkpoint = Some(told);
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
