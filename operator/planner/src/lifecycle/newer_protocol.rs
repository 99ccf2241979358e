//! Jobs whose workers follow a newer operator: their memberships have a protocol that this version
//! does not know.

use roundhouse_api::{ConditionReason, ConditionType, TrainingJobStatus};
use roundhouse_contract::membership::PROTOCOL;

use crate::draft::Draft;
use crate::observed::{Pod, PodPhase};
use crate::plan::PlanReason;
use crate::rejection::{Rejection, RejectionReason};
use crate::status::not_accepted::reject;

/// Leaves such a job as it is, after a rollback of the operator. This version cannot read the
/// memberships. It would treat training members as new workers and form a second process group.
/// Every version can suspend a job; after a resume the workers get memberships of this version.
pub(crate) fn leave_alone(draft: &mut Draft<'_>) -> Option<PlanReason> {
    if draft.job.suspend {
        return None;
    }
    let pods = draft.pods.iter();
    let issued = pods.filter(|pod| pod.ours && !pod.deleting && pod.newer_protocol.is_some());
    let protocol = issued.clone().filter_map(|pod| pod.newer_protocol).max()?;
    let (num_issued, num_running) = (
        issued.clone().count(),
        issued.filter(|pod| runs(pod)).count(),
    );
    // The message does not depend on the number of pods, so it does not change while pods are lost.
    let message = format!(
        "a newer operator wrote the workers' memberships in protocol {protocol}, and this operator knows \
         protocol {PROTOCOL}: it does nothing for the job until the newer operator runs again, or the job is suspended and resumed"
    );
    draft.status = TrainingJobStatus {
        observed_generation: Some(draft.job.generation),
        ..draft.observed.status.clone()
    };
    if num_running == num_issued && draft.status.is_true(ConditionType::Running) {
        keep_running(draft, &message);
    } else {
        let message = format!("{num_running} of {num_issued} workers run; {message}");
        draft.running(false, ConditionReason::NewerProtocol, message);
    }
    let reason = RejectionReason::NewerProtocol;
    reject(draft, &Rejection { reason, message });
    Some(PlanReason::NotAccepted)
}

/// Whether a worker's container runs, judged without its membership.
fn runs(pod: &Pod) -> bool {
    let end = pod.container.termination.as_ref();
    let has_ended = end.is_some_and(|end| end.restarts == pod.container.restarts);
    pod.phase == PodPhase::Running && !pod.unreachable && !has_ended
}

fn keep_running(draft: &mut Draft<'_>, message: &str) {
    let Some(running) = draft.status.condition(ConditionType::Running) else {
        return;
    };
    if !running.message.contains(message) {
        let message = format!("{}; {message}", running.message);
        draft.running(true, ConditionReason::Training, message);
    }
}
