//! Reports committed steps that were lost and repeated: one event each time their number grows.

use roundhouse_api::{EventReason, TrainingJobStatus};
use roundhouse_contract::Progress;

use crate::draft::{Draft, event};

/// Whether progress reports repeated steps that the status does not have.
#[must_use]
pub(crate) fn are_new(status: &TrainingJobStatus, progress: &Progress) -> bool {
    num_new(status, progress) > 0
}

/// Publishes the repeated steps that the status does not have. The caller
/// updates the status afterwards.
pub(crate) fn report(draft: &mut Draft<'_>, progress: &Progress) {
    let num_new = num_new(&draft.status, progress);
    let Some(repeat) = progress.last_repeat.filter(|_| num_new > 0) else {
        return;
    };
    let all = progress.repeated_steps;
    let all = if all > num_new {
        format!("; {all} steps of this job in total")
    } else {
        String::new()
    };
    let message = format!("{}{all}", repeat.words(num_new));
    draft
        .events
        .push(event(EventReason::StepsRepeated, message));
}

fn num_new(status: &TrainingJobStatus, progress: &Progress) -> u64 {
    let shown = status.progress.as_ref();
    let known = shown.map_or(0, |shown| shown.progress.repeated_steps);
    progress.repeated_steps.saturating_sub(known)
}
