//! Shows in the status what progress reports about checkpoints, and publishes an event when one
//! fails.

use jiff::Timestamp;
use roundhouse_api::{CheckpointStatus, EventReason, TrainingJobStatus};
use roundhouse_contract::{BestCheckpoint, HeldCopy, Progress};

use crate::draft::{Draft, event};
use crate::generation::copies;
use crate::status::time;
use crate::validate::ValidatedJob;

/// Longest error in the status, in bytes; the schema's bound.
const MAX_ERROR_BYTES: usize = 1_024;
/// Longest name of a pod, in bytes; the schema's bound.
const MAX_POD_NAME_BYTES: usize = 253;

/// Whether the report about checkpoints would change the status.
pub(crate) fn differs(job: &ValidatedJob, status: &TrainingJobStatus, progress: &Progress) -> bool {
    merged(job, status.checkpoint.clone(), progress) != status.checkpoint
}

/// Whether progress reports an error that the status does not have.
#[must_use]
pub(crate) fn is_in_new_trouble(status: &TrainingJobStatus, progress: &Progress) -> bool {
    let now = reported(progress).unwrap_or_default();
    let known = status.checkpoint.clone().unwrap_or_default();
    let is_new = |now: &Option<String>, known: &Option<String>| now.is_some() && now != known;
    is_new(&now.error, &known.error) || is_new(&now.local_error, &known.local_error)
}

/// Copies the report into the status. Each new error is one event.
pub(crate) fn show(draft: &mut Draft<'_>, progress: &Progress) {
    let before = draft.status.checkpoint.take();
    let known: Vec<String> = before.as_ref().map(troubles).unwrap_or_default();
    let now = merged(draft.job, before, progress);
    let troubles = now.as_ref().map(troubles).unwrap_or_default();
    let new = troubles
        .into_iter()
        .filter(|trouble| !known.contains(trouble));
    let new = new.map(|trouble| event(EventReason::CheckpointFailed, trouble));
    draft.events.extend(new);
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
        before.local_step = None;
        (before.peer_step, before.peer_pod) = (None, None);
        return Some(before);
    };
    let before = before.unwrap_or_default();
    // A resumed process that has not saved yet reports no checkpoint; the earlier one still exists.
    if now.step.is_none() {
        (now.step, now.time) = (before.step, before.time);
    }
    // Unlike a checkpoint, an earlier copy may be gone with its pod, so it is not kept.
    let has_copies = copies::are_kept(job);
    now.local_step = now
        .local_step
        .filter(|step| has_copies && now.step < Some(*step));
    if !job.has_copy_pairs() || now.peer_step <= now.step {
        (now.peer_step, now.peer_pod) = (None, None);
    }
    now.best = now.best.or(before.best).filter(is_kept);
    Some(now)
}

/// A suffix for the message about training, if checkpoints fail.
pub(crate) fn warning(status: &TrainingJobStatus) -> String {
    let troubles = status.checkpoint.as_ref().map(troubles);
    let none = String::new();
    let all: Vec<String> = std::iter::once(none)
        .chain(troubles.unwrap_or_default())
        .collect();
    all.join("; ")
}

/// What is wrong with checkpoints and local copies, as sentences without their full stops.
fn troubles(checkpoint: &CheckpointStatus) -> Vec<String> {
    let error = checkpoint.error.as_ref();
    let error = error.map(|error| format!("trouble with checkpoints: {error}"));
    let local = checkpoint.local_error.as_ref();
    let local = local.map(|error| format!("trouble with local copies: {error}"));
    error.into_iter().chain(local).collect()
}

fn reported(progress: &Progress) -> Option<CheckpointStatus> {
    let Progress {
        checkpoint_step: step,
        checkpoint_at,
        local_step,
        held_copy,
        best_checkpoint: best,
        checkpoint_error,
        local_error,
        ..
    } = progress;
    let [error, local_error] = [checkpoint_error, local_error].map(|error| {
        let error = error.as_ref()?;
        let end = error.floor_char_boundary(MAX_ERROR_BYTES);
        Some(error[..end].to_owned())
    });
    let at = checkpoint_at.as_ref().and_then(|at| at.parse().ok());
    let is_name = |held: &&HeldCopy| held.pod.len() <= MAX_POD_NAME_BYTES;
    let held = held_copy.as_ref().filter(is_name);
    let has_copies = local_step.is_some() || held.is_some() || local_error.is_some();
    let is_known = step.is_some() || error.is_some() || has_copies;
    is_known.then(|| CheckpointStatus {
        step: *step,
        time: at.map(|at: Timestamp| time(at)),
        local_step: *local_step,
        peer_step: held.map(|held| held.step),
        peer_pod: held.map(|held| held.pod.clone()),
        local_error,
        best: *best,
        error,
    })
}
