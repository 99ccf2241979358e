//! A deleted job that still exists: a finalizer holds it, or Kubernetes deletes its pods first. The
//! operator creates and deletes no more objects, and forms no generation.

use roundhouse_api::{ConditionReason, ConditionType, finalizers_of_others};

use crate::draft::Draft;
use crate::plan::PlanReason;

/// Reports in the status what holds the job, and does nothing else.
pub(crate) fn explain(draft: &mut Draft<'_>) -> PlanReason {
    draft.status = draft.observed.status.clone();
    if !draft.status.is_terminal() {
        let trains = draft.status.is_true(ConditionType::Running);
        let message = words(&draft.job.finalizers);
        draft.running(trains, ConditionReason::Deleting, message);
    }
    PlanReason::Deleting
}

fn words(finalizers: &[String]) -> String {
    let theirs: Vec<&str> = finalizers_of_others(finalizers).collect();
    if theirs.is_empty() {
        return "the job is being deleted: Kubernetes deletes its pods first".to_owned();
    }
    let names = theirs.join(", ");
    format!(
        "the job is being deleted and waits for finalizers of other controllers: {names}; its pods stay until these are removed, and \
         workers that fail are not replaced"
    )
}
