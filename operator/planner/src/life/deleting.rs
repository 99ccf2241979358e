//! A job that is deleted and is still there: somebody's finalizer holds it, or Kubernetes deletes its pods first. The operator makes,
//! forms and deletes nothing more.

use roundhouse_api::{ConditionReason, ConditionType};

use crate::draft::Draft;
use crate::plan::PlanReason;

/// Kubernetes' own finalizer: it deletes what the job owns before the job.
const FOREGROUND: &str = "foregroundDeletion";

/// Says what holds the job, which is all that is done.
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
