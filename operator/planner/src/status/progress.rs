//! The progress of training in the status.

use std::time::Duration;

use jiff::Timestamp;
use roundhouse_api::{JobProgress, TrainingJobStatus};
use roundhouse_contract::Progress;

use crate::draft::Draft;
use crate::observed::ProgressSample;
use crate::status::{checkpoint, repeats};
use crate::status::{percent, rounded, time, time_left};

/// Shortest interval between writes of progress while few jobs train.
const INTERVAL: Duration = Duration::from_secs(10);

/// Shows a newer sample of progress: errors at once, the rest at intervals.
pub(crate) fn show(draft: &mut Draft<'_>) {
    let Some(ProgressSample { progress, at }) = &draft.observed.progress else {
        return;
    };
    let interval = draft.observed.progress_interval.unwrap_or(INTERVAL);
    let due = draft.status.progress.as_ref().is_none_or(|shown| {
        let is_time = time_left(shown.updated_at.0, interval, *at).is_none();
        let differs = shown.progress.step != progress.step
            || checkpoint::differs(draft.job, &draft.status, progress);
        is_time && differs || is_in_new_trouble(&draft.status, progress)
    });
    if due && progress.generation == draft.members.generation && !draft.status.is_terminal() {
        repeats::report(draft, progress);
        draft.status.progress = Some(shown(&draft.status, progress, *at));
        checkpoint::show(draft, progress);
    }
}

/// Whether progress reports a checkpoint error or repeated steps that the status does not have.
#[must_use]
pub fn is_in_new_trouble(status: &TrainingJobStatus, progress: &Progress) -> bool {
    checkpoint::is_in_new_trouble(status, progress) || repeats::are_new(status, progress)
}

/// Whether all steps are done, according to the newest report. The members then only save the
/// results. A worker that joins now could not help, and the members do not accept new workers
/// until they have saved.
pub(crate) fn is_complete(draft: &Draft<'_>) -> bool {
    let sample = draft.observed.progress.as_ref();
    sample.is_some_and(|ProgressSample { progress, .. }| {
        progress.total_steps > 0 && progress.step >= progress.total_steps
    })
}

/// Shows the last progress. A worker that has ended may have left it in its termination message,
/// and the last report of rank 0 may have been too recent to be shown.
pub(crate) fn show_last(draft: &mut Draft<'_>) {
    let before = draft.status.progress.as_ref();
    let polled = draft.observed.progress.as_ref().map(|it| &it.progress);
    let polled = polled.filter(|it| it.generation == draft.members.generation);
    let left = draft.pods.iter().filter_map(|pod| {
        let end = pod.container.termination.as_ref()?;
        end.message.as_ref()?.progress.clone()
    });
    // All ranks are at the same step; only rank 0 knows the checkpoints and the repeated steps.
    let last = polled
        .cloned()
        .into_iter()
        .chain(left)
        .max_by_key(|it| {
            let of_rank_0 = (it.checkpoint_step, it.checkpoint_error.is_some());
            (it.step, of_rank_0, it.repeated_steps)
        })
        .filter(|last| before.is_none_or(|before| before.progress.step <= last.step));
    let Some(progress) = last else { return };
    checkpoint::show(draft, &progress);
    repeats::report(draft, &progress);
    let now = shown(&draft.status, &progress, draft.now);
    let before = draft.status.progress.as_ref();
    if before.is_none_or(|before| before.progress != now.progress) {
        draft.status.progress = Some(now);
    }
}

/// Formats progress for the status, with the time of the report.
fn shown(status: &TrainingJobStatus, progress: &Progress, at: Timestamp) -> JobProgress {
    let before = status.progress.as_ref().map(|shown| &shown.progress);
    JobProgress {
        progress: rounded(progress).with_repeats_of(before),
        percent: percent(progress.step, progress.total_steps),
        updated_at: time(at),
    }
}
