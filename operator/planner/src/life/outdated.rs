//! All pods of a run are built from the same. A run lasts until the job is suspended: only then may the template and what
//! else is in the pods be edited.

use roundhouse_api::{ConditionReason, ConditionType, EventReason};
use roundhouse_contract::BuiltFrom;

use crate::draft::{Draft, event};
use crate::failures::replacements;
use crate::life::suspend;
use crate::observed::Pod;
use crate::plan::{DeleteReason, PlanReason};
use crate::told::status::counted;
use crate::workers::delete::delete;
use crate::workers::group;

/// An operator that was away while the job was suspended, edited and resumed finds pods of the spec before. They leave, as for a
/// suspension, and the job is resumed when they have left.
pub(crate) fn leave(draft: &mut Draft<'_>) -> Option<PlanReason> {
    // A job that is not accepted gets no new pods, so it keeps those that it has.
    if draft.rejection.is_some() {
        return None;
    }
    let pods = draft.observed.pods.iter();
    let outdated: Vec<&Pod> = pods.filter(|pod| is_outdated(draft, pod)).collect();
    let asked = outdated.iter().filter(|pod| !pod.deleting);
    let asked: Vec<&Pod> = asked.copied().collect();
    let leaving = outdated
        .iter()
        .filter(|pod| suspend::still_leaves(pod, draft.now).is_some())
        .count();
    let is_resuming = draft.status.is_true(ConditionType::Suspended);
    if asked.is_empty() && (leaving == 0 || is_resuming) {
        return None;
    }
    for pod in &asked {
        draft.actions.push(delete(pod, DeleteReason::Outdated));
    }
    replacements::expect_none(draft);
    // As for a suspension: some of what it says cannot be edited.
    group::remove(draft);
    let workers = counted(asked.len() + leaving, "worker");
    let message = format!(
        "the spec was edited while the job was suspended: {workers} built from the spec before must leave first"
    );
    draft.running(false, ConditionReason::Resuming, message.clone());
    suspend::suspended(draft, true, ConditionReason::Resuming, message.clone());
    if !asked.is_empty() {
        draft.events.push(event(EventReason::Suspended, message));
    }
    Some(PlanReason::Resuming)
}

/// The generation and the version of the fingerprint tell an edit from an operator that reads the same spec in another way.
fn is_outdated(draft: &Draft<'_>, pod: &Pod) -> bool {
    let job = draft.job;
    let differs = |it: &BuiltFrom| {
        it.spec_version == BuiltFrom::SPEC_VERSION
            && it.spec != job.built_from
            && it.job_generation < job.generation
    };
    pod.ours && pod.built_from.as_ref().is_some_and(differs)
}

/// The image that the pods of this run were built with, which the operator's settings may have left behind. `None`: there
/// is no pod, or none that says.
pub(crate) fn trainer_image(draft: &Draft<'_>) -> Option<String> {
    let pods = draft.observed.pods.iter().filter(|pod| pod.ours);
    let same = pods.filter(|pod| !is_outdated(draft, pod));
    let first = same
        .filter_map(|pod| Some(((pod.created_at, &pod.name), pod.built_from.as_ref()?)))
        .min_by_key(|(age, _)| *age);
    first.map(|(_, built_from)| built_from.trainer_image.clone())
}
