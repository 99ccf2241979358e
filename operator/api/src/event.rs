//! Reasons of the Kubernetes Events about a job: a closed set, each with its meaning.

roundhouse_contract::closed_enum! {
    /// Why the operator publishes an Event.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum EventReason {
        /// The operator accepted the job.
        Accepted,
        /// The spec cannot run, or a part of it cannot be read.
        InvalidSpec,
        /// The administrator's policy does not allow what the job asks for.
        ForbiddenByPolicy,
        /// The namespace has as many jobs as the administrator's policy allows.
        TooManyJobs,
        /// A newer operator gave the job's workers their ranks.
        NewerProtocol,
        /// An object of another owner has the name of one of the job's objects.
        NameTaken,
        /// The gang scheduler of the job is not installed.
        GangSchedulerMissing,
        /// The API server refused an object of the job, or did not answer in time.
        Refused,
        /// Another client changed or deleted an object of the job again after the operator had
        /// repaired it.
        RepairReverted,
        /// All members of a new generation train.
        GenerationIssued,
        /// A worker failed, for any reason.
        WorkerFailed,
        /// The job trains without a worker that fails repeatedly before it trains.
        WorkerLeftOut,
        /// A checkpoint could not be saved.
        CheckpointFailed,
        /// Committed steps were lost and repeated.
        StepsRepeated,
        /// The workers leave, because `spec.suspend` is true.
        Suspended,
        /// `spec.suspend` is false again.
        Resumed,
        /// The job ended with success.
        Succeeded,
        /// The job has failed permanently.
        Failed,
    }
}

impl EventReason {
    /// The reason as the Event contains it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::InvalidSpec => "InvalidSpec",
            Self::ForbiddenByPolicy => "ForbiddenByPolicy",
            Self::TooManyJobs => "TooManyJobs",
            Self::NewerProtocol => "NewerProtocol",
            Self::NameTaken => "NameTaken",
            Self::GangSchedulerMissing => "GangSchedulerMissing",
            Self::Refused => "Refused",
            Self::RepairReverted => "RepairReverted",
            Self::GenerationIssued => "GenerationIssued",
            Self::WorkerFailed => "WorkerFailed",
            Self::WorkerLeftOut => "WorkerLeftOut",
            Self::CheckpointFailed => "CheckpointFailed",
            Self::StepsRepeated => "StepsRepeated",
            Self::Suspended => "Suspended",
            Self::Resumed => "Resumed",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Whether its Events have the type `Warning`; otherwise they are `Normal`.
    #[must_use]
    pub const fn is_warning(self) -> bool {
        match self {
            Self::InvalidSpec
            | Self::ForbiddenByPolicy
            | Self::TooManyJobs
            | Self::NewerProtocol
            | Self::NameTaken
            | Self::GangSchedulerMissing
            | Self::Refused
            | Self::RepairReverted
            | Self::WorkerFailed
            | Self::WorkerLeftOut
            | Self::CheckpointFailed
            | Self::StepsRepeated
            | Self::Failed => true,
            Self::Accepted
            | Self::GenerationIssued
            | Self::Suspended
            | Self::Resumed
            | Self::Succeeded => false,
        }
    }

    /// What the reason means, and what the message contains.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Accepted => "The spec can be run. The message has the number of workers.",
            Self::InvalidSpec => {
                "The spec cannot be run. The message names the field and says what to change."
            }
            Self::ForbiddenByPolicy => {
                "The administrator's policy does not allow something that the job asks for. The message names each field and the key of the policy."
            }
            Self::TooManyJobs => {
                "As many jobs of the namespace run as the administrator's policy allows. The job waits."
            }
            Self::NewerProtocol => {
                "A newer operator gave the job's workers their ranks in a protocol that this operator does not know. It leaves the job alone."
            }
            Self::NameTaken => {
                "An object of another owner has the name of one of the job's objects."
            }
            Self::GangSchedulerMissing => {
                "The gang scheduler that `scheduling.gang` names is not installed, or the operator may not read its PodGroups. The message says what to install."
            }
            Self::Refused => {
                "The API server refused an object of the job, or did not answer in time. The message has its words."
            }
            Self::RepairReverted => {
                "Another client changed or deleted a Service or a NetworkPolicy of the job again after the operator had repaired it. The operator repairs it after pauses that grow from 1 min to 1 h. The message names the object."
            }
            Self::GenerationIssued => "All members of a new generation train.",
            Self::WorkerFailed => {
                "A worker failed. The message is that of `status.lastFailure`, with pod, rank, node and cause."
            }
            Self::WorkerLeftOut => {
                "A worker fails repeatedly before it trains, and enough others train without it. The kubelet starts its container again after pauses of up to 5 min. The message names pod, node, container and cause."
            }
            Self::CheckpointFailed => {
                "A checkpoint or a local copy could not be saved. Training continues. The message has the path and the cause."
            }
            Self::StepsRepeated => {
                "Steps that were committed were lost, with all processes that had their state, and training repeats them. The message has their numbers, and the state that training continued from."
            }
            Self::Suspended => {
                "The job is suspended. The message names the step that it continues from."
            }
            Self::Resumed => {
                "The job is resumed. The message names the step that it continues from."
            }
            Self::Succeeded => "The job ended with success.",
            Self::Failed => "The job failed. The message is that of the `Failed` condition.",
        }
    }
}
