//! Workers that fail before they train. The kubelet restarts their containers with a growing
//! back-off. They end only a job that cannot train without them: a node on which no container
//! starts is no reason to stop the workers on other nodes.

use std::collections::BTreeSet;

use roundhouse_api::{ConditionReason, EventReason, FailureAction, TrainingJobStatus};
use roundhouse_contract::labels::TRAINER_CONTAINER;

use super::words::{describe, sentence};
use crate::draft::{Draft, event};
use crate::observed::Pod;
use crate::status::counted;
use crate::verdict::Failure;

/// Whether the container failed in the lobby or before it, and not in a generation.
fn is_outside(failure: &Failure<'_>) -> bool {
    let document = failure.pod.membership.as_ref();
    document.is_none_or(|document| {
        let restarts = document.incarnation.restarts;
        failure.end.is_some_and(|end| end.restarts > restarts)
    })
}

/// Whether a worker that has not trained reports a failure that a restart does not cure. The other
/// workers were started with the same arguments, so its node may be the cause.
fn is_permanent(failure: &Failure<'_>) -> bool {
    let is_default = failure.rule.is_none() && failure.action == FailureAction::FailJob;
    is_default && is_outside(failure)
}

/// A container that fails in the lobby or before it belongs to no generation, so its
/// restarts are counted instead.
fn restarts_too_often(draft: &Draft<'_>, failure: &Failure<'_>) -> bool {
    let counts = failure.action != FailureAction::Ignore;
    counts && failure.restarts_in_lobby() > draft.job.backoff_limit
}

/// Whether a worker is not expected to start any more.
fn is_hopeless(draft: &Draft<'_>, failure: &Failure<'_>) -> bool {
    is_permanent(failure) || restarts_too_often(draft, failure)
}

/// Whether enough workers train, or may train, without the hopeless ones. Before the first
/// generation, a worker without a node does not count: it may never get one.
fn are_dispensable(draft: &Draft<'_>, failures: &[Failure<'_>]) -> bool {
    let hopeless = failures.iter().filter(|it| is_hopeless(draft, it));
    let hopeless: BTreeSet<&str> = hopeless.map(|it| draft.worker_uid(it.pod)).collect();
    let able = draft.members.able_and_spares();
    let able: BTreeSet<&str> = able.iter().map(|pod| pod.uid.as_str()).collect();
    let is_starting = draft.is_starting();
    let may_train = |pod: &&&Pod| {
        let comes = !hopeless.contains(pod.uid.as_str()) && (!is_starting || pod.node.is_some());
        able.contains(pod.uid.as_str()) || comes
    };
    let others = draft.members.workers.values().filter(may_train).count();
    others as u64 >= u64::from(draft.job.min_replicas)
}

/// Whether a failure is permanent but ends only its worker, because the job has trained and
/// continues without that worker.
pub(super) fn ends_itself_alone(
    draft: &Draft<'_>,
    failures: &[Failure<'_>],
    failure: &Failure<'_>,
) -> bool {
    is_permanent(failure) && !draft.is_starting() && are_dispensable(draft, failures)
}

/// Whether a container that restarts too often ends the job, because the job cannot
/// train without its worker.
pub(super) fn too_many(
    draft: &Draft<'_>,
    failures: &[Failure<'_>],
) -> Option<(ConditionReason, String)> {
    let failure = failures.iter().find(|it| restarts_too_often(draft, it))?;
    if are_dispensable(draft, failures) {
        return None;
    }
    let (name, restarts) = (&failure.pod.name, restarts(failure));
    let words = words(draft, failure);
    let message = format!("{name} restarted {restarts} times; {words}");
    Some((ConditionReason::BackoffLimitExceeded, message))
}

fn restarts(failure: &Failure<'_>) -> u32 {
    let own = failure.pod.container.restarts;
    failure.init.map_or(own, |init| init.restarts)
}

fn words(draft: &Draft<'_>, failure: &Failure<'_>) -> String {
    let described = describe(failure, draft.now);
    // The kubelet reports only for a short time that it stopped a container because of its hook.
    let before = draft.status.last_failure.as_ref().filter(|before| {
        (&before.worker, &before.time) == (&described.worker, &described.time)
            && failure.init.is_none()
    });
    sentence(before.unwrap_or(&described))
}

/// Why a job that trains has fewer workers than wanted, if one of them fails repeatedly. Publishes
/// an event when the worker changes.
pub(crate) fn report_left_out(draft: &mut Draft<'_>) -> Option<String> {
    let able = draft.members.able_and_spares();
    let pods = draft.pods_by_index().values();
    let failures = pods.filter_map(|pod| Failure::of(draft.job, pod));
    let failure = failures.into_iter().find(|failure| {
        let is_able = able
            .iter()
            .any(|pod| pod.uid == draft.worker_uid(failure.pod));
        !is_able && is_hopeless(draft, failure)
    })?;
    let container = failure.init.map_or(TRAINER_CONTAINER, |init| &init.name);
    let message = format!(
        "{}; container {container} was restarted {}; the others train without it",
        words(draft, &failure),
        counted(restarts(&failure), "time")
    );
    let left_out = Some(failure.pod.name.clone());
    let left_out_of = |status: &TrainingJobStatus| status.workers.as_ref()?.left_out.clone();
    if left_out_of(&draft.observed.status) != left_out {
        let reason = EventReason::WorkerLeftOut;
        draft.events.push(event(reason, message.clone()));
    }
    if let Some(workers) = &mut draft.status.workers {
        workers.left_out = left_out;
    }
    Some(message)
}
