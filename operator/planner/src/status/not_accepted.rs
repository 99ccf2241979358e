//! Jobs that are not accepted. The planner manages them like other jobs, but creates no new pods
//! for them.

use std::time::Duration;

use roundhouse_api::{ConditionType, TrainingJobStatus};

use crate::draft::{Draft, event};
use crate::observed::Observed;
use crate::plan::PlanReason;
use crate::rejection::{Rejection, RejectionReason};
use crate::status::set_condition;
use crate::validate::ValidatedJob;

const TRY_AGAIN: Duration = Duration::from_secs(10);

/// The job with numbers with which its running pods can continue: no new pods are created, so the
/// job does not wait for them, and an invalid number removes no worker.
pub(crate) fn as_it_runs(job: &ValidatedJob, observed: &Observed) -> ValidatedJob {
    let status = &observed.status;
    let workers = status.workers.as_ref();
    let wanted = workers.map_or_else(
        || {
            let ours = observed.pods.iter().filter(|pod| pod.ours);
            let ours = u32::try_from(ours.count()).unwrap_or(u32::MAX);
            ours / job.pods_per_replica.max(1)
        },
        |workers| workers.wanted,
    );
    let replicas = match job.replicas {
        0 => wanted.max(1),
        replicas => replicas,
    };
    let nodes = status
        .membership
        .as_ref()
        .map(|membership| membership.nodes);
    let most = nodes.unwrap_or(replicas).clamp(1, replicas);
    ValidatedJob {
        replicas,
        min_replicas: job.min_replicas.clamp(1, most),
        ..job.clone()
    }
}

/// Sets the Accepted condition, and publishes an event when it changes.
pub(crate) fn reject(draft: &mut Draft<'_>, rejection: &Rejection) {
    let kind = ConditionType::Accepted;
    let accepted = |status: &TrainingJobStatus| {
        let condition = status.condition(kind)?;
        Some((condition.reason.clone(), condition.message.clone()))
    };
    let before = accepted(&draft.status);
    let Rejection { reason, message } = rejection;
    let condition = reason.condition();
    set_condition(
        &mut draft.status,
        kind,
        false,
        condition,
        message,
        draft.now,
    );
    if *reason == RejectionReason::TooManyJobs {
        // No event reports that another job of the namespace has ended.
        draft.requeue(TRY_AGAIN);
    }
    if accepted(&draft.status) != before {
        draft.events.push(event(reason.event(), message));
    }
}

/// Sets the Running condition to what the rejection means for the workers.
pub(crate) fn show(draft: &mut Draft<'_>, rejection: &Rejection, reason: PlanReason) -> PlanReason {
    let Rejection {
        reason: why,
        message,
    } = rejection;
    let running = draft.status.condition(ConditionType::Running);
    let words = running.map_or("", |running| &running.message);
    match reason {
        PlanReason::Training => {
            let message = format!("{words}; no new workers are created: {message}");
            draft.running(true, roundhouse_api::ConditionReason::Training, message);
            reason
        }
        PlanReason::Suspended | PlanReason::Resuming => {
            let message = format!("{words}; no new workers are created: {message}");
            draft.running(false, why.condition(), message);
            reason
        }
        PlanReason::CreatingWorkers
        | PlanReason::WaitingForWorkers
        | PlanReason::Recovering
        | PlanReason::NameTaken
        | PlanReason::GangSchedulerMissing
        | PlanReason::NotAccepted => {
            draft.running(false, why.condition(), message);
            PlanReason::NotAccepted
        }
        PlanReason::RaisingGeneration
        | PlanReason::IssuingMembership
        | PlanReason::Finishing
        | PlanReason::Succeeded
        | PlanReason::Failed
        | PlanReason::Deleting => reason,
    }
}
