//! Diagnoses why a job does not train: one situation with evidence and advice. A pure function of
//! the
//! [`Facts`]: the first rule that applies decides, and causes come before consequences.

use serde::Serialize;

use crate::facts::Facts;

mod ended;
mod init;
mod pods;
mod spec;
mod stopped;
#[cfg(test)]
mod tests;
mod training;
mod waiting;

/// The situation of a job, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub(crate) enum Situation {
    /// Another controller manages the job.
    NotManaged,
    /// The job is deleted, and a finalizer holds it.
    Deleting,
    /// The operator has not seen the job.
    Unseen,
    /// The operator does not accept the spec.
    InvalidSpec,
    /// The administrator's policy does not allow what the job asks for.
    ForbiddenByPolicy,
    /// The namespace has as many jobs as the administrator's policy allows.
    TooManyJobs,
    /// The job's workers use a newer protocol than the operator knows.
    NewerProtocol,
    /// All workers of the job have completed.
    Succeeded,
    /// The loss is no longer finite.
    Diverged,
    /// A worker ran out of memory.
    OutOfMemory,
    /// The data is missing or corrupt.
    DataInvalid,
    /// The configuration is wrong.
    ConfigInvalid,
    /// A time limit of the job has passed.
    DeadlineExceeded,
    /// The job failed for another reason.
    Failed,
    /// The job is suspended on request.
    Suspended,
    /// Workers from before a suspension still leave.
    Resuming,
    /// Another object has a name that the job needs.
    NameTaken,
    /// The gang scheduler of the job is not installed.
    GangSchedulerMissing,
    /// A quota does not allow the job's pods.
    QuotaExceeded,
    /// The API server refuses the job's pods.
    Refused,
    /// The API server does not answer when the operator creates the job's objects.
    NoAnswer,
    /// A queue holds the job's pods with scheduling gates.
    SchedulingGated,
    /// The scheduler finds no node.
    Unschedulable,
    /// A node cannot get the image.
    ImagePullFailed,
    /// The kubelet cannot start the container.
    ContainerConfigError,
    /// A pod has a node, but its containers do not start.
    ContainerCreating,
    /// An init container fails, or a sidecar that starts before the trainer.
    InitContainerFailed,
    /// A worker ends again and again before it is ready.
    CrashLoop,
    /// Kubernetes has lost contact with a node.
    NodeUnreachable,
    /// Kubernetes ended a worker's pod.
    WorkerFailed,
    /// Fewer workers than `minReplicas` are left.
    BelowMinReplicas,
    /// A worker was lost and is replaced.
    Recovering,
    /// The workers form a generation.
    Forming,
    /// Workers prepare, or wait for others.
    Lobby,
    /// Checkpoints cannot be written.
    CheckpointFailing,
    /// The job has made no step for several minutes.
    NoProgress,
    /// One worker is much slower than the others.
    Straggler,
    /// The job trains with fewer workers than wanted.
    FewerWorkers,
    /// The job trains, and nothing is wrong.
    Healthy,
}

impl Situation {
    /// Whether the user or the operator must repair something.
    pub(crate) const fn is_wrong(self) -> bool {
        !matches!(
            self,
            Self::Succeeded
                | Self::Suspended
                | Self::Deleting
                | Self::Resuming
                | Self::SchedulingGated
                | Self::Forming
                | Self::Lobby
                | Self::Healthy
        )
    }
}

/// A situation with its evidence and advice.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Diagnosis {
    pub(crate) situation: Situation,
    /// Whether something must be repaired; see [`Situation::is_wrong`].
    pub(crate) is_wrong: bool,
    /// The situation in a sentence.
    pub(crate) summary: String,
    /// Facts that show the situation.
    pub(crate) evidence: Vec<String>,
    /// What to do, in order.
    pub(crate) advice: Vec<String>,
}

impl Diagnosis {
    fn new(situation: Situation, summary: impl Into<String>) -> Self {
        Self {
            situation,
            is_wrong: situation.is_wrong(),
            summary: summary.into(),
            evidence: Vec::new(),
            advice: Vec::new(),
        }
    }

    /// Adds evidence, unless it is empty or a duplicate.
    fn shown_by(mut self, evidence: impl Into<String>) -> Self {
        let evidence = evidence.into();
        if !evidence.is_empty() && !self.evidence.contains(&evidence) {
            self.evidence.push(evidence);
        }
        self
    }

    /// Adds the next thing to do.
    fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice.push(advice.into());
        self
    }
}

/// The diagnosis of a job.
pub(crate) fn diagnose(facts: &Facts) -> Diagnosis {
    let found = spec::rule(facts)
        .or_else(|| ended::rule(facts))
        .or_else(|| training::rule(facts))
        .or_else(|| pods::rule(facts));
    let found = found.unwrap_or_else(|| waiting::rule(facts));
    let (reason, message) = facts.front();
    let status = if message.is_empty() {
        String::new()
    } else {
        format!("condition {reason}: {message}")
    };
    stopped::explained(facts, found.shown_by(status))
}
