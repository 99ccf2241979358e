//! Counts each incident once, and fails the job when a limit is exceeded.

use roundhouse_api::{ConditionReason, EventReason, FailureAction, LastFailure};
use roundhouse_contract::ExitCode;

use self::cause::{
    first_before_issue, first_failure, is_ignored_in_place, is_incident, is_late_cause,
    is_of_counted_generation, is_peer_failure, late_cause_in_place,
};
use self::words::{describe, sentence};
use crate::draft::{Draft, event};
use crate::generation::stranded;
use crate::observed::Pod;
use crate::plan::PlanReason;
use crate::verdict::Failure;

pub(crate) mod budget;
mod cause;
pub(crate) mod newcomers;
pub(crate) mod nodes;
pub(crate) mod replacements;
pub(crate) mod words;

/// Counts new incidents, and fails the job if it cannot recover.
pub(crate) fn give_up(draft: &mut Draft<'_>) -> Option<PlanReason> {
    let pods = draft.pods.iter();
    let failures = pods.filter_map(|pod| Failure::of(draft.job, pod));
    let failures: Vec<Failure<'_>> = failures.filter(|it| !is_explained(draft, it)).collect();
    if let Some((reason, message)) = permanent(draft, &failures) {
        return Some(draft.fail(reason, message));
    }
    nodes::avoid(draft, &failures);
    count_incident(draft, &failures);
    note(draft, &failures);
    let (reason, message) = too_many(draft, &failures)?;
    Some(draft.fail(reason, message))
}

/// Whether processes of a replica ended because one of its pods is gone, leaves or cannot be
/// reached. That pod is judged, and these are its consequence.
fn is_explained(draft: &Draft<'_>, failure: &Failure<'_>) -> bool {
    let Some(replicas) = draft.replicas else {
        return false;
    };
    let generation = |pod: &Pod| pod.membership.as_ref().map(|it| it.generation);
    let explains = |pod: Option<&Pod>| {
        pod.is_none_or(|pod| {
            let is_new = generation(pod) < generation(failure.pod);
            let is_ignored =
                Failure::of(draft.job, pod).is_some_and(|it| it.action == FailureAction::Ignore);
            pod.unreachable || is_new || is_ignored
        })
    };
    let replica = replicas.replica_of(failure.pod);
    let leaves = replicas.leaving.iter().any(|it| {
        let mut pods = it.present();
        pods.any(|pod| pod.uid == failure.pod.uid)
    });
    failure.is_peer_failure()
        && (leaves || replica.is_none_or(|it| it.pods.iter().any(|pod| explains(*pod))))
}

/// A failure that would recur after a restart, or that a rule of the user forbids.
fn permanent(draft: &mut Draft<'_>, failures: &[Failure<'_>]) -> Option<(ConditionReason, String)> {
    let mut failing = failures
        .iter()
        .filter(|failure| failure.action == FailureAction::FailJob);
    let failure = failing.find(|it| !newcomers::ends_itself_alone(draft, failures, it))?;
    let described = describe(failure, draft.now);
    let words = sentence(&described);
    draft.status.last_failure = Some(described);
    if let Some(rule) = failure.rule {
        let message = format!("failurePolicy.rules[{rule}]: {words}");
        return Some((ConditionReason::FailurePolicyRule, message));
    }
    let code = failure
        .end
        .and_then(|end| ExitCode::from_code(end.exit_code));
    Some((
        code.and_then(ConditionReason::of_permanent)
            .unwrap_or(ConditionReason::WorkerFailed),
        words,
    ))
}

/// Counts at most one incident per generation, when a member has failed. The status stores the
/// generation's number, so it is not counted twice. The operator may see a worker that lost a peer
/// before it sees the peer: then the failure that explains the others replaces it. A hung process
/// is ended long after its peers, when they are in the next generation already.
fn count_incident(draft: &mut Draft<'_>, failures: &[Failure<'_>]) {
    let generation = draft.members.generation;
    let counted = draft.status.incidents.last_generation == Some(generation);
    let last = draft.status.last_failure.as_ref();
    if generation == 0 {
        return;
    }
    if last.is_some_and(stranded::is_peers_lost)
        && let Some(cause) = late_cause_in_place(draft)
    {
        return report(draft, &cause);
    }
    if counted && !is_peer_failure(last) {
        return;
    }
    let failure =
        first_failure(generation, failures).or_else(|| first_before_issue(draft, failures));
    if let Some(failure) = failure {
        if !counted && is_late_cause(draft, failure) {
            // Mark this generation as counted; the pod never joined it.
            draft.status.incidents.last_generation = Some(generation);
            draft.recorded = true;
            return report(draft, failure);
        }
        if !counted {
            budget::count(draft, Some(failure));
        }
        if !counted || !failure.is_peer_failure() {
            report(draft, failure);
        }
    } else if !counted
        && !failures
            .iter()
            .any(|failure| is_ignored_in_place(generation, failure))
        && let Some(pod) = stranded::first(draft)
    {
        budget::count(draft, None);
        set_last_failure(draft, stranded::describe(draft, pod));
    }
}

fn report(draft: &mut Draft<'_>, failure: &Failure<'_>) {
    set_last_failure(draft, describe(failure, draft.now));
}

fn set_last_failure(draft: &mut Draft<'_>, failure: LastFailure) {
    let message = sentence(&failure);
    draft.events.push(event(EventReason::WorkerFailed, message));
    draft.status.last_failure = Some(failure);
}

/// A failure that is not an incident becomes `lastFailure` if it is the newest one. A consequence
/// of a counted incident does not: it would hide the cause.
fn note(draft: &mut Draft<'_>, failures: &[Failure<'_>]) {
    let generation = draft.members.generation;
    let newest = failures
        .iter()
        .filter(|failure| !failure.is_peer_failure() && !is_incident(generation, failure))
        .filter(|failure| !is_of_counted_generation(draft, failure))
        .max_by_key(|failure| (failure.at(), &failure.pod.name));
    let Some(newest) = newest else { return };
    let described = describe(newest, draft.now);
    let is_newer = draft.status.last_failure.as_ref().is_none_or(|last| {
        let same = (&last.worker, &last.reason) == (&described.worker, &described.reason);
        described.time.0 > last.time.0 && (newest.at().is_some() || !same)
    });
    if is_newer {
        report(draft, newest);
    }
}

fn too_many(draft: &Draft<'_>, failures: &[Failure<'_>]) -> Option<(ConditionReason, String)> {
    let limit = draft.job.backoff_limit;
    let incidents = &draft.status.incidents;
    let last = draft.status.last_failure.as_ref().map(sentence);
    let last = last.unwrap_or_default();
    if incidents.since_progress > limit {
        let count = incidents.since_progress;
        let message = format!("{count} incidents in a row without a new step; the last: {last}");
        return Some((ConditionReason::BackoffLimitExceeded, message));
    }
    if let Some(most) = draft.job.max_incidents
        && incidents.total > most
    {
        let message = format!("{} incidents; the last: {last}", incidents.total);
        return Some((ConditionReason::MaxIncidentsExceeded, message));
    }
    if let Some(replaced) = replacements::too_many(draft) {
        return Some(replaced);
    }
    newcomers::too_many(draft, failures)
}
