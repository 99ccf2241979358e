//! Why a job does not train, or how it does: one diagnosis with its evidence and what to do. A pure function of the
//! [`Facts`]: the first rule that applies decides, causes before consequences.

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

/// What is the case, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub(crate) enum Situation {
    /// Another controller looks after the job.
    NotManaged,
    /// The job is deleted, and a finalizer holds it.
    Deleting,
    /// The operator has not seen the job.
    Unseen,
    /// The spec cannot be run.
    InvalidSpec,
    /// The administrator's policy does not allow what the job asks for.
    ForbiddenByPolicy,
    /// The namespace has as many jobs as the administrator's policy allows.
    TooManyJobs,
    /// A newer operator ran the job, and this one cannot.
    NewerProtocol,
    /// The job is complete.
    Succeeded,
    /// The loss is no longer finite.
    Diverged,
    /// A worker used more memory than it has.
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
    /// Workers of before a suspension still leave.
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
    /// Somebody's queue holds the job.
    SchedulingGated,
    /// The scheduler finds no node.
    Unschedulable,
    /// A node cannot get the image.
    ImagePullFailed,
    /// The kubelet cannot start the container.
    ContainerConfigError,
    /// A pod is placed, and its containers do not start.
    ContainerCreating,
    /// An init container, or a sidecar before the trainer, fails.
    InitContainerFailed,
    /// A worker ends again and again before it is ready.
    CrashLoop,
    /// Kubernetes has lost touch with a node.
    NodeUnreachable,
    /// Kubernetes ended a worker's pod.
    WorkerFailed,
    /// Fewer workers than `minReplicas` are left.
    BelowMinReplicas,
    /// A worker was lost and is replaced.
    Recovering,
    /// A generation forms.
    Forming,
    /// Workers prepare, or wait for others.
    Lobby,
    /// Checkpoints cannot be written.
    CheckpointFailing,
    /// Progress is old.
    NoProgress,
    /// One worker is much slower than the others.
    Straggler,
    /// It trains with fewer workers than are wanted.
    FewerWorkers,
    /// It trains.
    Healthy,
}

impl Situation {
    /// Whether a person or the operator has something to mend.
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

/// What is the case, how that is known, and what to do.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Diagnosis {
    /// In one word.
    pub(crate) situation: Situation,
    /// Whether there is something to mend.
    pub(crate) is_wrong: bool,
    /// In a sentence.
    pub(crate) summary: String,
    /// What was read that shows it.
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

    /// Adds something that was read, unless it is empty or known.
    fn shown_by(mut self, evidence: impl Into<String>) -> Self {
        let evidence = evidence.into();
        if !evidence.is_empty() && !self.evidence.contains(&evidence) {
            self.evidence.push(evidence);
        }
        self
    }

    /// Adds something to do.
    fn do_(mut self, advice: impl Into<String>) -> Self {
        self.advice.push(advice.into());
        self
    }
}

/// The diagnosis.
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
