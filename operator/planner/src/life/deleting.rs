//! A job that is deleted and still there: a finalizer holds it, or Kubernetes deletes its pods first. The operator creates and
//! deletes nothing more, and forms no generation.

use roundhouse_api::{ConditionReason, ConditionType};

use crate::draft::Draft;
use crate::plan::PlanReason;

/// Kubernetes' own finalizer: it deletes what the job owns before the job.
const FOREGROUND: &str = "foregroundDeletion";

/// Reports what holds the job, and does nothing else.
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
    let theirs = finalizers.iter().map(String::as_str);
    let theirs: Vec<&str> = theirs.filter(|name| *name != FOREGROUND).collect();
    if theirs.is_empty() {
        return "the job is being deleted, after its pods".to_owned();
    }
    let names = theirs.join(", ");
    format!(
        "the job is deleted and held by finalizers of others: {names}; its pods stay until these are removed, and workers that fail \
         are not replaced"
    )
}
