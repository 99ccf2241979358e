//! Reasons of `status.lastFailure`: their source, default cost, meaning and advice. `docgen` writes
//! the failure handbook from this table. A test of the planner compares the costs with the
//! planner's decisions.

use roundhouse_contract::{ExitCode, Reason};

use crate::FailureAction::{self, Count, FailJob, Ignore, ReplaceAndAvoidNode};

/// Reason of a failure for a generation that broke although none of its workers died.
pub const PEERS_LOST: &str = "PeersLost";

/// Reason of a failure for a worker whose trainer cannot start because an init container fails.
pub const INIT_CONTAINER_FAILED: &str = "InitContainerFailed";

/// The source of a failure's reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The trainer or its agent, in the termination message.
    Trainer,
    /// The operator, from what it observes.
    Operator,
    /// Kubernetes, for the container.
    Container,
    /// Kubernetes, for the pod.
    Pod,
}

/// A reason of a failure with its explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureReason {
    /// The reason as in `status.lastFailure.reason`.
    pub name: &'static str,
    /// The program that reports the reason.
    pub source: Source,
    /// What the failure costs if no rule of `failurePolicy.rules` matches; `None` if it
    /// is not a failure.
    pub action: Option<FailureAction>,
    /// What the reason means, in one or two sentences.
    pub meaning: &'static str,
    /// What to do about it.
    pub advice: &'static str,
}

/// The explanation of a reason that the trainer reports.
#[must_use]
pub const fn of_trainer(reason: Reason) -> FailureReason {
    let (action, meaning, advice) = match reason {
        Reason::Completed => (None, "Training is complete.", "Nothing."),
        Reason::ConfigInvalid => (
            Some(FailJob),
            "The configuration is wrong, or training diverges with it, or a script of your own ended without a call of `roundhouse.join()`, or its command does not exist. The message names the key, the step and the loss, or what is missing. Running the job again ends the same way, so the job fails at once.",
            "Correct `spec.trainer` or your script, delete the job, and apply it again.",
        ),
        Reason::DataInvalid => (
            Some(FailJob),
            "The data is missing or corrupt, or does not fit the model. The message has the path. Running the job again ends the same way, so the job fails at once.",
            "Correct the data or `trainer.data`, delete the job, and apply it again.",
        ),
        Reason::InternalError => (
            Some(Count),
            "The trainer or a program built on it failed in a way that it does not expect.",
            "Read the message and the worker's log. If the message says `out of memory`, lower `trainer.microBatchSize`, set `trainer.activationCheckpointing: Blocks`, or give the workers more memory. Otherwise report it with the log.",
        ),
        Reason::VolumeFailed => (
            Some(Count),
            "The checkpoint volume took or gave nothing for ten minutes: the result could not be saved, or a checkpoint not be read.",
            "Repair the volume. The job continues from the newest checkpoint. A pod that stays `Terminating` waits in its node's kernel for the volume.",
        ),
        Reason::PeerLost => (
            Some(Count),
            "The process lost a peer or the rendezvous store and could not continue. Usually another worker's failure explains it.",
            "Look for the failure of another worker at the same time. If the message says that the state after a step is lost, no worker has that state any more: with `spec.checkpoint` the job continues from the newest checkpoint.",
        ),
        Reason::Stalled => (
            Some(Count),
            "A process made no step for too long, and the agent ended its worker.",
            "Read the end of the worker's log: it has the state and place of every thread. If the steps really take that long, raise `stallTimeoutSeconds`.",
        ),
        Reason::HardwareFault => (
            Some(ReplaceAndAvoidNode),
            "A GPU failed, a GPU that the pod asks for cannot be used, or the worker's weights are not those of the other workers. The worker is replaced on another node.",
            "Look at the node in `status.lastFailure.node`. The message has the words of CUDA and its driver, or names the ranks that differ.",
        ),
        Reason::Left => (
            Some(Count),
            "The worker left because it was asked to (SIGTERM), although the operator did not ask it.",
            "Find out who stops the container. If that is expected, ignore it with a rule: `onExitCodes: {operator: In, values: [143]}`, `action: Ignore`.",
        ),
        Reason::Killed => (
            Some(Count),
            "A signal killed the process. The message has the signal. After SIGKILL the kernel's memory limit is the usual cause.",
            "Compare the worker's memory with `limits.memory`. After SIGSEGV or SIGBUS read the log.",
        ),
        Reason::Crashed => (
            Some(Count),
            "The process ended with an exit code that is not one of Roundhouse's.",
            "Read the worker's log: `kubectl logs POD --previous`. In restart mode the code is your script's.",
        ),
    };
    FailureReason {
        name: reason.as_str(),
        source: Source::Trainer,
        action,
        meaning,
        advice,
    }
}

/// The explanation of an exit code of agent and trainer.
#[must_use]
pub const fn of_exit_code(code: ExitCode) -> FailureReason {
    of_trainer(Reason::of(code))
}

const fn other(
    name: &'static str,
    source: Source,
    action: FailureAction,
    meaning: &'static str,
    advice: &'static str,
) -> FailureReason {
    FailureReason {
        name,
        source,
        action: Some(action),
        meaning,
        advice,
    }
}

/// Reasons that do not come from the trainer. Kubernetes has more of them;
/// `status.lastFailure` shows each unchanged.
pub const OTHERS: [FailureReason; 14] = [
    other(
        PEERS_LOST,
        Source::Operator,
        Count,
        "A generation broke although none of its workers died: a connection was cut, or a worker did not answer for longer than the others wait.",
        "Nothing if it stays a single incident. If it repeats, check the network between the nodes, and the log of each worker for a process that hangs.",
    ),
    other(
        INIT_CONTAINER_FAILED,
        Source::Operator,
        Count,
        "An init container of the template, or a sidecar that starts before the trainer, failed. The message has its name and last words. It belongs to no generation: its restarts are compared with `backoffLimit`, and more of them fail a job that cannot train without this worker.",
        "Read its log: `kubectl logs POD -c CONTAINER`. Correct the container in `workers.template`.",
    ),
    other(
        "PostStartHookError",
        Source::Operator,
        Count,
        "The kubelet stopped the container because its `postStart` hook failed. The message has the kubelet's words.",
        "Correct `lifecycle.postStart` of the container in `workers.template`.",
    ),
    other(
        "OOMKilled",
        Source::Container,
        Count,
        "The kernel killed the container because it used more than `limits.memory`.",
        "Raise `limits.memory`, or lower `trainer.microBatchSize` or `trainer.data.reading.readAhead`.",
    ),
    other(
        "Error",
        Source::Container,
        Count,
        "The container ended with an exit code other than 0 and left no message.",
        "Read the worker's log: `kubectl logs POD --previous`. For exit codes see the reference.",
    ),
    other(
        "Evicted",
        Source::Pod,
        Count,
        "The kubelet took the pod away because it used more than its own limit: `ephemeral-storage`, or the `sizeLimit` of an `emptyDir`. The message has the kubelet's words. If the pod has the condition `DisruptionTarget`, its node ran out of memory or disk: that is a disruption and costs nothing.",
        "Raise the limit, or write less to the container's own file system. If its node ran out, give the pod `requests` that match what it uses, `ephemeral-storage` among them.",
    ),
    other(
        "NodeAffinity",
        Source::Pod,
        Ignore,
        "The node stopped matching the pod's node selection.",
        "Nothing, or correct the labels of the node.",
    ),
    other(
        "NodeLost",
        Source::Pod,
        Ignore,
        "Kubernetes lost contact with the pod's node and gave the pod up.",
        "Look at the node.",
    ),
    other(
        "NodeShutdown",
        Source::Pod,
        Ignore,
        "The node shut down.",
        "Nothing.",
    ),
    other(
        "Preempted",
        Source::Pod,
        Ignore,
        "A pod of higher priority took the place.",
        "Nothing, or give the workers a higher `priorityClassName`.",
    ),
    other(
        "Preempting",
        Source::Pod,
        Ignore,
        "The kubelet removed the pod for a critical one.",
        "Nothing.",
    ),
    other(
        "Shutdown",
        Source::Pod,
        Ignore,
        "The node shut down before the pod was ready.",
        "Nothing.",
    ),
    other(
        "Terminated",
        Source::Pod,
        Ignore,
        "The node shut down in an orderly way and ended the pod.",
        "Nothing.",
    ),
    other(
        "UnexpectedAdmissionError",
        Source::Pod,
        ReplaceAndAvoidNode,
        "The node refused the pod because a device that the scheduler counted on is not there. The worker is replaced on another node.",
        "Look at the node's device plugin.",
    ),
];

/// All reasons of failures in this table.
pub fn all() -> impl Iterator<Item = FailureReason> {
    let trainer = Reason::ALL.into_iter().map(of_trainer);
    trainer.chain(OTHERS).filter(|entry| entry.action.is_some())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn reasons_are_unique_and_explained_in_sentences() {
        let mut names = HashSet::new();
        for entry in all() {
            assert!(names.insert(entry.name), "{} is there twice", entry.name);
            for words in [entry.meaning, entry.advice] {
                assert!(words.ends_with('.'), "{}: {words}", entry.name);
            }
        }
        assert_eq!(names.len(), Reason::ALL.len() - 1 + OTHERS.len());
    }
}
