//! What an incident takes from `backoffLimit`: one, and all of it comes back with a new step. Nobody may have told of
//! steps (the operator cannot reach the workers' port, the process was killed, a script writes no progress). That is no
//! sign of trouble, so a generation of which nothing is known is judged by how long it lived.

use std::time::Duration;

use jiff::Timestamp;
use roundhouse_contract::{Mode, TerminationMessage};

use super::policy::Failure;
use crate::draft::Draft;
use crate::status::time_left;

/// A generation that lived so long has made progress unless somebody tells otherwise. Longer than forming it, loading the
/// state and the first steps take, so that a crash loop still ends the job.
const SURELY_TRAINED: Duration = Duration::from_secs(300);

/// Counts an incident of the newest generation. `failure`: what ended it, if a worker failed.
pub(super) fn count(draft: &mut Draft<'_>, failure: Option<&Failure<'_>>) {
    let words = failure.and_then(words);
    let step = newest_step(draft, words.map(|words| words.step));
    let is_known = words.is_some_and(|words| tells_of_steps(draft, words)) || is_heard_of(draft);
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

/// Whether the last words of a worker tell how far it came in the newest generation. A script that says 0 tells nothing:
/// it need not write its progress.
fn tells_of_steps(draft: &Draft<'_>, words: &TerminationMessage) -> bool {
    let is_silent = words.step == 0 && draft.job.program.mode() == Mode::Restart;
    words.generation == draft.members.generation && !is_silent
}

/// The furthest step that anybody has told of.
pub(crate) fn newest_step(draft: &Draft<'_>, told: Option<u64>) -> u64 {
    let shown = draft.status.progress.as_ref();
    let shown = shown.map(|shown| shown.progress.step);
    // It is in the status only after a while.
    let heard = draft.observed.progress.as_ref();
    let heard = heard.map(|heard| heard.progress.step);
    let all = [told, shown, heard].into_iter().flatten();
    all.max().unwrap_or(0)
}

/// Whether rank 0 has told of a step of the newest generation.
pub(super) fn is_heard_of(draft: &Draft<'_>) -> bool {
    let shown = draft.status.progress.as_ref().map(|it| &it.progress);
    let heard = draft.observed.progress.as_ref().map(|it| &it.progress);
    let mut all = shown.into_iter().chain(heard);
    all.any(|progress| progress.generation == draft.members.generation && progress.step > 0)
}

/// Whether the newest generation lived long enough to have trained: from its last document to the failure, or to now.
pub(super) fn has_lived_long(draft: &Draft<'_>, failure: Option<&Failure<'_>>) -> bool {
    let pods = draft.observed.pods.iter();
    let documents = pods.filter_map(|pod| pod.membership.as_ref());
    let newest = documents.filter(|document| document.generation == draft.members.generation);
    let issued: Option<Timestamp> = newest.filter_map(|it| it.issued_at.parse().ok()).max();
    // By the node's clock, which may be ahead.
    let ended = failure
        .and_then(Failure::at)
        .unwrap_or(draft.now)
        .min(draft.now);
    issued.is_some_and(|issued| time_left(issued, SURELY_TRAINED, ended).is_none())
}
