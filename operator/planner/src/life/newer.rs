//! Jobs whose workers follow a newer operator: their membership documents have a protocol that this version does not know.

use roundhouse_api::{ConditionReason, ConditionType, TrainingJobStatus};
use roundhouse_contract::membership::PROTOCOL;

use crate::draft::Draft;
use crate::plan::PlanReason;
use crate::rejection::{Rejection, RejectionReason};
use crate::told::rejected::reject;

/// Leaves such a job as it is, after a rollback of the operator: it would take members that train for workers that never
/// did, and would form a second world beside them. A suspension is understood by all versions, and whoever is resumed after it
/// gets documents of this one.
pub(crate) fn leave_alone(draft: &mut Draft<'_>) -> Option<PlanReason> {
    if draft.job.suspend {
        return None;
    }
    let pods = draft.observed.pods.iter();
    let told = pods.filter(|pod| pod.ours && !pod.deleting);
    let (protocol, pod) = told
        .filter_map(|pod| Some((pod.newer_protocol?, &pod.name)))
        .max()?;
    let message = format!(
        "{pod} has a membership document of protocol {protocol}, and this operator knows {PROTOCOL}: it does nothing for the \
         job until the newer operator runs again, or the job is suspended and resumed"
    );
    draft.status = TrainingJobStatus {
        observed_generation: Some(draft.job.generation),
        ..draft.observed.status.clone()
    };
    let reason = RejectionReason::NewerProtocol;
    tell(draft, &message);
    reject(draft, &Rejection { reason, message });
    Some(PlanReason::NotAccepted)
}

/// Workers that trained still do, as far as this version can tell.
fn tell(draft: &mut Draft<'_>, message: &str) {
    let running = draft.status.condition(ConditionType::Running);
    match running.filter(|running| running.status == "True") {
        None => draft.running(false, ConditionReason::NewerProtocol, message),
        Some(trains) if trains.message.contains(message) => {}
        Some(trains) => {
            let message = format!("{}; {message}", trains.message);
            draft.running(true, ConditionReason::Training, message);
        }
    }
}
