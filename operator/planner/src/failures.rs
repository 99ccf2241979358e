//! Incidents, each counted once, and when the job is given up.

use std::cmp::Ordering;

use jiff::Timestamp;
use roundhouse_api::{ConditionReason, EventReason, FailureAction, LastFailure};
use roundhouse_contract::{ExitCode, Incarnation};

use self::policy::Failure;
use self::words::{describe, sentence};
use crate::draft::{Draft, event};
use crate::generation::members::fingerprint_of;
use crate::generation::stranded;
use crate::generation::worker::end_in_place;
use crate::observed::Pod;
use crate::plan::PlanReason;

mod budget;
pub(crate) mod nodes;
pub(crate) mod policy;
mod words;

/// Counts what is to be counted, and gives the job up if it cannot be saved.
pub(crate) fn give_up(draft: &mut Draft<'_>) -> Option<PlanReason> {
    let pods = draft.observed.pods.iter();
    let failures: Vec<Failure<'_>> = pods.filter_map(|pod| Failure::of(draft.job, pod)).collect();
    if let Some((reason, message)) = permanent(draft, &failures) {
        return Some(draft.fail(reason, message));
    }
    nodes::avoid(draft, &failures);
    count_incident(draft, &failures);
    note(draft, &failures);
    let (reason, message) = too_many(draft, &failures)?;
    Some(draft.fail(reason, message))
}

/// A failure after which running it again ends the same way, or that the user will not have.
fn permanent(draft: &mut Draft<'_>, failures: &[Failure<'_>]) -> Option<(ConditionReason, String)> {
    let fails = |failure: &&Failure<'_>| failure.action == FailureAction::FailJob;
    let failure = failures.iter().find(fails)?;
    let told = describe(failure, draft.now);
    let words = sentence(&told);
    draft.status.last_failure = Some(told);
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

/// One incident per generation: a member failed. Its number in the status says that it is counted.
/// Who lost a peer may be seen before the peer: the failure that explains the others takes its place. A
/// process that hangs is ended long after its peers, and when they have the next generation already.
fn count_incident(draft: &mut Draft<'_>, failures: &[Failure<'_>]) {
    let generation = draft.members.generation;
    let counted = draft.status.incidents.last_generation == Some(generation);
    let last = draft.status.last_failure.as_ref();
    if generation == 0 {
        return;
    }
    if last.is_some_and(stranded::is_told)
        && let Some(cause) = late_cause_in_place(draft)
    {
        return tell(draft, &cause);
    }
    if counted && !is_collateral(last) {
        return;
    }
    let failure =
        first_failure(generation, failures).or_else(|| first_before_issue(draft, failures));
    if let Some(failure) = failure {
        if !counted && is_late_cause(draft, failure) {
            // Of this generation nothing more is counted, either: it was never there.
            draft.status.incidents.last_generation = Some(generation);
            draft.recorded = true;
            return tell(draft, failure);
        }
        if !counted {
            budget::count(draft, Some(failure));
        }
        if !counted || !failure.is_collateral() {
            tell(draft, failure);
        }
    } else if !counted
        && !failures
            .iter()
            .any(|failure| is_ignored_in_place(generation, failure))
        && let Some(pod) = stranded::first(draft)
    {
        budget::count(draft, None);
        announce(draft, stranded::describe(draft, pod));
    }
}

/// A process that died in place in the generation of the newest incident, and whose agent answered after that
/// was counted as lost peers.
fn late_cause_in_place<'a>(draft: &Draft<'a>) -> Option<Failure<'a>> {
    let counted = draft.status.incidents.last_generation?;
    draft.observed.pods.iter().find_map(|pod| {
        let end = pod.processes.as_ref()?.end.as_ref()?;
        let words = end.message.as_ref()?;
        let failure = Failure::with(draft.job, pod, Some(end));
        (words.generation == counted && !failure.is_collateral()).then_some(failure)
    })
}

/// Whether a process died in place in this generation, and the job's rules ignore that: then its peers were lost
/// for a known reason that does not count.
fn is_ignored_in_place(generation: u64, failure: &Failure<'_>) -> bool {
    let document = failure.pod.membership.as_ref();
    failure.action == FailureAction::Ignore
        && end_in_place(failure.pod).is_some()
        && document.is_some_and(|document| document.generation == generation)
}

fn tell(draft: &mut Draft<'_>, failure: &Failure<'_>) {
    announce(draft, describe(failure, draft.now));
}

fn announce(draft: &mut Draft<'_>, failure: LastFailure) {
    let message = sentence(&failure);
    draft.events.push(event(EventReason::WorkerFailed, message));
    draft.status.last_failure = Some(failure);
}

/// What is no incident is told all the same, if it is newer than what was told last. What came of an incident
/// that is counted is not: it would hide the cause.
fn note(draft: &mut Draft<'_>, failures: &[Failure<'_>]) {
    let generation = draft.members.generation;
    let newest = failures
        .iter()
        .filter(|failure| !failure.is_collateral() && !is_incident(generation, failure))
        .filter(|failure| !is_of_counted_generation(draft, failure))
        .max_by_key(|failure| (failure.at(), &failure.pod.name));
    let Some(newest) = newest else { return };
    let told = describe(newest, draft.now);
    let is_newer = draft.status.last_failure.as_ref().is_none_or(|last| {
        let same = (&last.worker, &last.reason) == (&told.worker, &told.reason);
        told.time.0 > last.time.0 && (newest.at().is_some() || !same)
    });
    if is_newer {
        tell(draft, newest);
    }
}

/// Whether a failure ended a member of a generation whose incident is counted, or somebody before that one.
fn is_of_counted_generation(draft: &Draft<'_>, failure: &Failure<'_>) -> bool {
    let (Some(document), Some(end)) = (&failure.pod.membership, failure.end) else {
        return false;
    };
    let counted = draft.status.incidents.last_generation.unwrap_or(0);
    match end.restarts.cmp(&document.incarnation.restarts) {
        Ordering::Less => true,
        Ordering::Equal => document.generation <= counted,
        // It has ended again since, in the lobby.
        Ordering::Greater => false,
    }
}

/// Whether a failure is why an earlier generation broke, which is counted already: the process has said of no
/// generation since that it is in it, and what was told last is that its peers had lost somebody.
fn is_late_cause(draft: &Draft<'_>, failure: &Failure<'_>) -> bool {
    let words = failure.end.and_then(|end| end.message.as_ref());
    let counted = draft.status.incidents.last_generation;
    let last = draft.status.last_failure.as_ref();
    !failure.is_collateral()
        && words.is_some_and(|words| {
            // Whoever forms its first generation speaks of none.
            words.generation > 0 && counted.is_some_and(|counted| words.generation <= counted)
        })
        && last.is_some_and(stranded::is_told)
}

fn is_collateral(failure: Option<&LastFailure>) -> bool {
    failure.is_some_and(|failure| failure.exit_code == Some(ExitCode::PeerLost.code()))
}

/// The failure that explains the others: of the members of the newest generation, the first that did
/// not merely lose a peer.
fn first_failure<'a>(generation: u64, failures: &'a [Failure<'a>]) -> Option<&'a Failure<'a>> {
    let of_members = failures
        .iter()
        .filter(|failure| is_incident(generation, failure));
    of_members.min_by_key(|failure| rank_as_cause(failure))
}

/// The first failure of a worker that the newest generation was raised for and that was not told of it yet. The
/// generation is as broken as if it had been.
fn first_before_issue<'a>(
    draft: &Draft<'_>,
    failures: &'a [Failure<'a>],
) -> Option<&'a Failure<'a>> {
    let mut able: Vec<&Pod> = draft.members.able_and_spares();
    let is_able = |pod: &Pod| able.iter().any(|able| able.uid == pod.uid);
    let failed: Vec<(&'a Failure<'a>, Incarnation)> = failures
        .iter()
        .filter(|failure| failure.action != FailureAction::Ignore && !is_able(failure.pod))
        .filter(|failure| !draft.members.is_member(failure.pod))
        .filter_map(|failure| {
            let (pod_uid, restarts) = (failure.pod.uid.clone(), failure.end?.restarts);
            Some((failure, Incarnation { pod_uid, restarts }))
        })
        .collect();
    // Of the others it was raised for the first ones, as many as were left to fill it.
    let nodes = draft
        .status
        .membership
        .as_ref()
        .map_or(0, |it| it.nodes as usize);
    able.truncate(nodes.saturating_sub(failed.len()));
    let as_they_were = failed.iter().map(|(_, incarnation)| incarnation.clone());
    let all = able.iter().map(|pod| pod.incarnation()).chain(as_they_were);
    let was_raised_for = fingerprint_of(all.collect()) == draft.members.raised_for;
    let failed = failed.into_iter().map(|(failure, _)| failure);
    let first = failed.min_by_key(|failure| rank_as_cause(failure));
    first.filter(|_| was_raised_for)
}

/// Smaller for what rather explains the others.
fn rank_as_cause<'a>(failure: &Failure<'a>) -> (bool, Option<Timestamp>, &'a str) {
    let at = failure.end.and_then(|end| end.finished_at);
    (failure.is_collateral(), at, &failure.pod.name)
}

/// Whether a member of this generation failed, and not for nothing.
fn is_incident(generation: u64, failure: &Failure<'_>) -> bool {
    let Some(document) = &failure.pod.membership else {
        return false;
    };
    let ended = failure
        .end
        .is_some_and(|end| end.restarts >= document.incarnation.restarts);
    document.generation == generation && ended && failure.action != FailureAction::Ignore
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
    // A container that fails in the lobby belongs to no generation; its restarts are the count.
    let failure = failures.iter().find(|failure| {
        let pod = failure.pod;
        let trained = pod
            .membership
            .as_ref()
            .map_or(0, |m| m.incarnation.restarts + 1);
        let restarts = pod.container.restarts.saturating_sub(trained);
        failure.action != FailureAction::Ignore && restarts > limit
    })?;
    let (name, restarts) = (&failure.pod.name, failure.pod.container.restarts);
    let words = sentence(&describe(failure, draft.now));
    let message = format!("{name} restarted {restarts} times; {words}");
    Some((ConditionReason::BackoffLimitExceeded, message))
}
