//! Charges an incident against `backoffLimit`: one per incident, and a new step resets the count. A
//! job may report no steps, because the operator cannot reach the workers' port, the process was
//! killed, or a script writes no progress. That alone is no sign of a failure, so a generation
//! without a report is judged by its lifetime.

use std::time::Duration;

use jiff::Timestamp;
use roundhouse_contract::{Mode, TerminationMessage};

use crate::draft::Draft;
use crate::status::time_left;
use crate::verdict::Failure;

/// A generation that lived this long has made progress, unless a report says otherwise. It is
/// longer than a generation takes to form, to load the state and to do its first steps, so a crash
/// loop still ends the job.
const SURELY_TRAINED: Duration = Duration::from_secs(300);

/// Counts an incident of the newest generation. `failure` is its cause, if a worker failed.
pub(super) fn count(draft: &mut Draft<'_>, failure: Option<&Failure<'_>>) {
    let words = failure.and_then(words);
    let step = newest_step(draft, words.map(|words| words.step));
    let is_known =
        words.is_some_and(|words| reports_steps(draft, words)) || has_reported_step(draft);
    let has_progressed =
        step > draft.status.incidents.last_step || (!is_known && has_lived_long(draft, failure));
    let incidents = &mut draft.status.incidents;
    incidents.total += 1;
    incidents.since_progress = if has_progressed {
        1
    } else {
        incidents.since_progress + 1
    };
    incidents.last_step = incidents.last_step.max(step);
    incidents.last_generation = Some(draft.members.generation);
    draft.recorded = true;
}

fn words<'a>(failure: &Failure<'a>) -> Option<&'a TerminationMessage> {
    failure.end?.message.as_deref()
}

/// Whether a worker's termination message says how far it came in the newest generation. A step of
/// 0 from a script says nothing: scripts need not write their progress.
fn reports_steps(draft: &Draft<'_>, words: &TerminationMessage) -> bool {
    let is_silent = words.step == 0 && draft.job.program.mode() == Mode::Restart;
    words.generation == draft.members.generation && !is_silent
}

/// The furthest step that any source has reported.
pub(crate) fn newest_step(draft: &Draft<'_>, reported: Option<u64>) -> u64 {
    let shown = draft.status.progress.as_ref();
    let shown = shown.map(|shown| shown.progress.step);
    // The status shows a progress only after a delay.
    let polled = draft.observed.progress.as_ref();
    let polled = polled.map(|polled| polled.progress.step);
    let all = [reported, shown, polled].into_iter().flatten();
    all.max().unwrap_or(0)
}

/// Whether rank 0 has reported a step of the newest generation.
pub(super) fn has_reported_step(draft: &Draft<'_>) -> bool {
    let shown = draft.status.progress.as_ref().map(|it| &it.progress);
    let polled = draft.observed.progress.as_ref().map(|it| &it.progress);
    let mut all = shown.into_iter().chain(polled);
    all.any(|progress| progress.generation == draft.members.generation && progress.step > 0)
}

/// Whether the newest generation lived long enough to have trained: from the issue of its last
/// membership to the failure, or to now.
pub(super) fn has_lived_long(draft: &Draft<'_>, failure: Option<&Failure<'_>>) -> bool {
    let pods = draft.observed.pods.iter();
    let documents = pods.filter_map(|pod| pod.membership.as_ref());
    let newest = documents.filter(|document| document.generation == draft.members.generation);
    let issued: Option<Timestamp> = newest.filter_map(|it| it.issued_at.parse().ok()).max();
    // The time is from the node's clock, which may be ahead.
    let ended = failure
        .and_then(Failure::at)
        .unwrap_or(draft.now)
        .min(draft.now);
    issued.is_some_and(|issued| time_left(issued, SURELY_TRAINED, ended).is_none())
}
