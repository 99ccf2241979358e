//! All pods of a run are built from the same. A run lasts until the job is suspended: only then may
//! the template and what else is in the pods be edited.

use roundhouse_api::{ConditionReason, ConditionType, EventReason};

use crate::built::is_of_spec;
use crate::draft::{Draft, event};
use crate::failures::replacements;
use crate::lifecycle::suspend;
use crate::observed::Pod;
use crate::plan::{DeleteReason, PlanReason};
use crate::status::counted;
use crate::workers::delete::delete;
use crate::workers::group;

/// An operator that was away while the job was suspended, edited and resumed finds pods of the spec
/// before. They leave, as for a suspension, and the job is resumed when they have left.
pub(crate) fn leave(draft: &mut Draft<'_>) -> Option<PlanReason> {
    // A job that is not accepted gets no new pods, so it keeps those that it has.
    if draft.rejection.is_some() {
        return None;
    }
    let pods = draft.pods.iter();
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

fn is_outdated(draft: &Draft<'_>, pod: &Pod) -> bool {
    pod.ours && !is_of_spec(pod, &draft.job.built_from, draft.job.generation)
}
