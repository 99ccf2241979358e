//! Judges a failure of a pod: the first matching rule of the job decides, else the defaults.

use std::time::Duration;

use jiff::Timestamp;
use roundhouse_api::failures::INIT_CONTAINER_FAILED;
use roundhouse_api::{ExitCodeOperator, FailureAction, FailureRule, OnExitCodes};
use roundhouse_contract::ExitCode;
use roundhouse_contract::termination::Reason;

use crate::observed::{InitContainer, Pod, PodPhase, Termination};
use crate::status::time_left;
use crate::validate::ValidatedJob;
use crate::worker_state::end_in_place;

/// Reasons with which the kubelet or the scheduler takes a pod away without a fault of the job.
const DISRUPTIONS: [&str; 7] = [
    "NodeAffinity",
    "NodeLost",
    "NodeShutdown",
    "Preempted",
    "Preempting",
    "Shutdown",
    "Terminated",
];
/// Condition of a pod whose resources the kubelet changes. It restarts containers with the policy
/// `RestartContainer` for that.
const RESIZES: &str = "PodResizeInProgress";
/// The kubelet evicted the pod. If its node lacked a resource, the pod also has the condition
/// `DisruptionTarget`; otherwise the pod exceeded its own storage limit.
const EVICTED: &str = "Evicted";
/// The kubelet lacks a device that the scheduler had counted.
const BAD_NODE: &str = "UnexpectedAdmissionError";

/// A pod that failed, or the container in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure<'a> {
    pub(crate) pod: &'a Pod,
    /// How its container ended, if it ran.
    pub(crate) end: Option<&'a Termination>,
    /// The init container that failed, so that the trainer has never started.
    pub(crate) init: Option<&'a InitContainer>,
    pub(crate) action: FailureAction,
    /// The index of the job's rule that decides; `None`: the defaults.
    pub(crate) rule: Option<usize>,
}

impl<'a> Failure<'a> {
    /// The newest failure of a pod. The end of a pod that is being deleted is no failure.
    pub(crate) fn of(job: &ValidatedJob, pod: &'a Pod) -> Option<Self> {
        if !pod.ours || pod.deleting {
            return None;
        }
        let failed = |end: &&Termination| end.exit_code != 0;
        let of_container = pod.container.termination.as_ref().filter(failed);
        // While the container runs, its own termination is an older one.
        let end = end_in_place(pod).or(of_container);
        let has_failed = end.is_some() || pod.phase == PodPhase::Failed;
        if has_failed {
            return Some(Self::with(job, pod, end));
        }
        failed_init(pod).map(|init| Self {
            init: Some(init),
            ..Self::with(job, pod, None)
        })
    }

    /// Judges the failure of a pod with this termination.
    pub(crate) fn with(job: &ValidatedJob, pod: &'a Pod, end: Option<&'a Termination>) -> Self {
        let first = job.rules.iter().position(|rule| matches(rule, pod, end));
        let action = first
            .and_then(|first| job.rules.get(first))
            .map_or_else(|| default_action(pod, end), |rule| rule.action);
        Self {
            pod,
            end,
            init: None,
            action,
            rule: first,
        }
    }

    /// The time of the failure, or of the last known moment before it.
    pub(crate) fn at(&self) -> Option<Timestamp> {
        let init = self.init.and_then(|init| init.failure.as_ref());
        let end = self.end.or(init).and_then(|end| end.finished_at);
        end.or(self.pod.ready_at).or(self.pod.created_at)
    }

    /// How often the container that failed was restarted without having been in a generation.
    pub(crate) fn restarts_in_lobby(&self) -> u32 {
        if let Some(init) = self.init {
            return init.restarts;
        }
        let document = self.pod.membership.as_ref();
        let trained = document.map_or(0, |document| document.incarnation.restarts + 1);
        self.pod.container.restarts.saturating_sub(trained)
    }

    /// Whether the kubelet took the pod away.
    pub(crate) fn is_eviction(&self) -> bool {
        let failed = self.pod.failed.as_ref();
        failed.is_some_and(|failed| failed.reason == EVICTED)
    }

    /// Whether the failure of a peer explains this one.
    pub(crate) fn is_peer_failure(&self) -> bool {
        self.end.is_some_and(is_peer_failure)
    }
}

/// The init container that keeps a worker from its first start, if there is one. In a pod that has
/// trained before, init containers run again because its node has restarted. Only the restarts
/// since then would count, and Kubernetes does not report those.
fn failed_init(pod: &Pod) -> Option<&InitContainer> {
    let init = pod.initializing.as_deref();
    let fails = |init: &&InitContainer| init.failure.is_some();
    init.filter(|_| pod.phase == PodPhase::Pending && pod.membership.is_none())
        .filter(fails)
}

/// Whether a pod must not train any more because its node caused the failure.
pub(crate) fn is_condemned(job: &ValidatedJob, pod: &Pod, now: Timestamp) -> bool {
    Failure::of(job, pod).is_some_and(|failure| {
        failure.action == FailureAction::ReplaceAndAvoidNode
            && pod.node.is_some()
            && is_recent(&failure, job.avoid_node, now)
    })
}

/// Whether the job still avoids the node because of this failure.
pub(crate) fn is_recent(failure: &Failure<'_>, avoid: Duration, now: Timestamp) -> bool {
    failure
        .at()
        .is_none_or(|at| time_left(at, avoid, now).is_some())
}

fn default_action(pod: &Pod, end: Option<&Termination>) -> FailureAction {
    let is = |reason: &str| reasons(pod, end).any(|found| found == reason);
    let code = end.and_then(|end| ExitCode::from_code(end.exit_code));
    let is_resized = code == Some(ExitCode::Left) && pod.conditions.iter().any(|it| it == RESIZES);
    if pod.disrupted || is_resized || DISRUPTIONS.into_iter().any(is) {
        FailureAction::Ignore
    } else if code.is_some_and(ExitCode::is_permanent) {
        FailureAction::FailJob
    } else if is(Reason::HardwareFault.as_str()) || is(BAD_NODE) {
        FailureAction::ReplaceAndAvoidNode
    } else if end.is_none() && failed_init(pod).is_none() && !is(EVICTED) {
        // The node rejected the pod, so it never ran.
        FailureAction::Ignore
    } else {
        FailureAction::Count
    }
}

fn matches(rule: &FailureRule, pod: &Pod, end: Option<&Termination>) -> bool {
    let FailureRule {
        action: _,
        on_exit_codes,
        on_pod_conditions,
        on_reasons,
    } = rule;
    let code = on_exit_codes
        .as_ref()
        .is_some_and(|codes| end.is_some_and(|end| includes(codes, end)));
    let condition = on_pod_conditions
        .iter()
        .flatten()
        .any(|kind| pod.conditions.contains(kind));
    let reason = on_reasons
        .iter()
        .flatten()
        .any(|wanted| reasons(pod, end).any(|found| found == wanted));
    code || condition || reason
}

fn includes(codes: &OnExitCodes, end: &Termination) -> bool {
    let listed = codes.values.contains(&end.exit_code);
    match codes.operator {
        ExitCodeOperator::In => listed,
        ExitCodeOperator::NotIn => !listed && !is_peer_failure(end),
    }
}

/// Whether the process lost a peer.
pub(crate) fn is_peer_failure(end: &Termination) -> bool {
    end.exit_code == ExitCode::PeerLost.code()
}

/// All reasons that Kubernetes, the agent and the trainer give for the failure.
fn reasons<'a>(pod: &'a Pod, end: Option<&'a Termination>) -> impl Iterator<Item = &'a str> {
    let init = failed_init(pod).filter(|_| end.is_none());
    let of_init = init.and_then(|init| init.failure.as_ref());
    let of_init = of_init.map(|end| end.reason.as_str());
    let init = init.map(|_| INIT_CONTAINER_FAILED);
    let of_pod = pod.failed.as_ref().map(|failed| failed.reason.as_str());
    let of_container = end.map(|end| end.reason.as_str());
    let own = end.and_then(|end| end.message.as_ref());
    let own = own.map(|message| message.reason.as_str());
    let all = [of_pod, of_container, own, init, of_init];
    all.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use roundhouse_api::failures::{self, Source};
    use roundhouse_contract::TerminationMessage;

    use super::*;
    use crate::observed::Waiting;

    /// A terminated container, with the reason in the trainer's termination message, if any.
    fn ended(exit_code: i32, reason: &str, said: Option<Reason>) -> Termination {
        let message = said.map(|reason| TerminationMessage {
            reason,
            rank: Some(0),
            generation: 1,
            step: 0,
            message: String::new(),
            progress: None,
        });
        Termination {
            restarts: 0,
            exit_code,
            reason: reason.to_owned(),
            message: message.map(Box::new),
            finished_at: None,
        }
    }

    #[test]
    fn handbook_has_the_default_action_of_each_failure() {
        for entry in failures::all() {
            let mut pod = Pod::default();
            let end = match entry.source {
                Source::Trainer => {
                    let said = Reason::ALL.into_iter().find(|it| it.as_str() == entry.name);
                    let code = ExitCode::ALL
                        .into_iter()
                        .find(|it| Some(Reason::of(*it)) == said);
                    Some(ended(code.map_or(1, ExitCode::code), "Error", said))
                }
                Source::Container => Some(ended(137, entry.name, None)),
                Source::Pod => {
                    let (reason, message) = (entry.name.to_owned(), String::new());
                    pod.failed = Some(Waiting { reason, message });
                    None
                }
                // No container ended, so no rule is asked: the planner counts it.
                Source::Operator => continue,
            };
            let action = default_action(&pod, end.as_ref());
            assert_eq!(Some(action), entry.action, "{}", entry.name);
        }
    }

    #[test]
    fn handbook_has_every_disruption() {
        for reason in DISRUPTIONS.into_iter().chain([EVICTED, BAD_NODE]) {
            assert!(
                failures::all().any(|entry| entry.name == reason),
                "{reason}"
            );
        }
    }
}
