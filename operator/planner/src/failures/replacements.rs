//! Counts pods that replace others. Most causes are not failures of the job and not incidents:
//! disruptions, lost nodes, deletions. Over weeks there may be any number of them. If no step is
//! committed between them, training does not progress, so their number is bounded.

use roundhouse_api::{ConditionReason, Replacements};

use super::budget::{has_lived_long, has_reported_step, newest_step};
use super::words::sentence;
use crate::draft::Draft;
use crate::plan::DeleteReason;
use crate::status::counted;

/// Counts workers whose pods are gone or terminating, by comparison with the number of
/// pods in the status.
pub(crate) fn note_lost(draft: &mut Draft<'_>) {
    let now = number(num_pods(draft));
    if draft.job.suspend {
        // A resumed job starts with new pods.
        draft.status.replacements.pods = 0;
    } else if draft.rejection.is_none() {
        // Surplus members leave even if spares are wanted at the same time: no pod replaces them.
        let surplus = draft.members.surplus.iter();
        let dismissed = surplus.filter(|(_, reason)| *reason == DeleteReason::ScaledDown);
        let dismissed = dismissed.count() * draft.own_job.pods_per_replica as usize;
        let before = draft.status.replacements.pods;
        let before = before.saturating_sub(number(dismissed));
        let before = before.min(draft.own_job.num_pods());
        draft.status.replacements.pods = now;
        // The pod of a completed worker is not needed any more.
        if draft.members.all_completed().is_empty() {
            count(draft, before.saturating_sub(now));
        }
    }
}

/// Counts the pods that this plan replaces, because they have ended or their nodes do not answer,
/// and the pods that it creates. [`crate::Plan::without_replacements`] undoes both.
pub(crate) fn note_going(draft: &mut Draft<'_>, going: usize, made: usize) {
    if going == 0 && made == 0 {
        return;
    }
    draft.seen_replacements = Some(draft.status.replacements.clone());
    let pods = &mut draft.status.replacements.pods;
    *pods = pods
        .saturating_sub(number(going))
        .saturating_add(number(made));
    count(draft, number(going));
}

/// Resets the count at the start of a run. If the run does not continue from a checkpoint, its
/// steps start at 0.
pub(crate) fn begin_run(draft: &mut Draft<'_>, starts_over: bool) {
    let replacements = &mut draft.status.replacements;
    replacements.since_progress = 0;
    if starts_over {
        replacements.last_step = 0;
    }
}

/// Resets the number of pods, because the operator itself removes all of them and none is lost.
pub(crate) fn expect_none(draft: &mut Draft<'_>) {
    draft.status.replacements.pods = 0;
}

/// Number of pods of wanted workers, and of spares.
fn num_pods(draft: &Draft<'_>) -> usize {
    let Some(replicas) = draft.replicas else {
        return draft.members.workers.len();
    };
    let is_wanted = |index: &u32| draft.members.workers.contains_key(index);
    let wanted = replicas.all.iter().filter(|(index, _)| is_wanted(index));
    let placed: usize = wanted.map(|(_, it)| it.present().count()).sum();
    placed + replicas.spares.len()
}

fn number(pods: usize) -> u32 {
    u32::try_from(pods).unwrap_or(u32::MAX)
}

fn count(draft: &mut Draft<'_>, pods: u32) {
    if pods == 0 {
        return;
    }
    let has_progressed = has_progressed(draft);
    let step = newest_step(draft, None);
    let generation = draft.members.generation;
    let Replacements {
        pods: _,
        total,
        since_progress,
        last_step,
        last_generation,
    } = &mut draft.status.replacements;
    let since = if has_progressed { 0 } else { *since_progress };
    *since_progress = since.saturating_add(pods);
    *total = total.saturating_add(pods);
    *last_step = step.max(*last_step);
    *last_generation = generation;
}

/// Whether a step was committed since the newest replacement. If no steps are reported, a
/// long-lived generation counts as progress: once, or for as long as all its members live. A pod
/// that is replaced meanwhile is not a member.
fn has_progressed(draft: &Draft<'_>) -> bool {
    let Replacements {
        last_step,
        last_generation,
        ..
    } = draft.status.replacements;
    let is_newer = draft.members.generation > last_generation;
    let is_silent = !has_reported_step(draft) && (is_newer || draft.members.are_whole());
    newest_step(draft, None) > last_step || (is_silent && has_lived_long(draft, None))
}

pub(super) fn too_many(draft: &Draft<'_>) -> Option<(ConditionReason, String)> {
    let most = draft.own_job.most_replacements();
    let count = draft.status.replacements.since_progress;
    // The next replacement resets the count, and the user may have lowered the limit. If all
    // members live, their watchdogs judge whether they make steps; replaced spares do not end the
    // job.
    if count <= most || has_progressed(draft) || draft.members.are_whole() {
        return None;
    }
    let pods = counted(count, "pod");
    let last = draft.status.last_failure.as_ref().map_or_else(
        || "no failure of a pod was reported".to_owned(),
        |last| format!("the last failure: {}", sentence(last)),
    );
    let message = format!(
        "{pods} took the place of others without a new step (failurePolicy.maxReplacements: {most}); {last}"
    );
    Some((ConditionReason::MaxReplacementsExceeded, message))
}
