//! Why a process ends before its training is complete, and the exit code for each reason.

use std::path::{Path, PathBuf};

use crate::weights::WeightsError;
use roundhouse_contract::ExitCode;
use roundhouse_contract::environment::EnvironmentInvalid;
use roundhouse_contract::trainer::{ConfigInvalid, OptionsInvalid};
use roundhouse_data::DataError;
use roundhouse_member::failure;
use roundhouse_report::Ending;

mod from;

pub(crate) use from::{lost, refused};

/// A reason to end the process: a message for the user, and an exit code that says whether a retry
/// can help.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An environment variable is missing or unreadable.
    #[error(
        "{0}; the agent of a worker sets it: to train alone, give --config FILE --data-dir DIR (--help)"
    )]
    Environment(#[from] EnvironmentInvalid),
    /// The configuration has an invalid value.
    #[error("{0}")]
    Config(#[from] ConfigInvalid),
    /// The user's own program has an invalid option.
    #[error("{0}")]
    Options(#[from] OptionsInvalid),
    /// The configuration file cannot be read, or its content is invalid.
    #[error("{}: {reason}", path.display())]
    ConfigFile {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with the file.
        reason: String,
    },
    /// Gradients or loss are no longer finite. A retry would end the same way.
    #[error(
        "step {step}: loss {loss}, gradient norm {gradient_norm}: training diverges{}{}; \
         lower trainer.optimizer.learningRate or add trainer.schedule.warmupSteps",
        named(ranks),
        after_skips(*skipped_before)
    )]
    Diverged {
        /// The step that was not committed; steps count from 1.
        step: u64,
        /// Mean loss of the step over the global batch.
        loss: f64,
        /// Norm of the step's mean gradient.
        gradient_norm: f64,
        /// Number of consecutive steps before this one that were skipped because they were not
        /// finite.
        skipped_before: u64,
        /// The ranks whose own loss or gradient is not finite. Empty if only the sum over all ranks
        /// is not finite.
        ranks: Vec<u32>,
    },
    /// A data file of the user's own source is missing or corrupt.
    #[error("{}: {reason}", path.display())]
    Data {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with the file.
        reason: String,
    },
    /// A data file is missing or corrupt, with the error of its format.
    #[error("{0}")]
    Unreadable(DataError),
    /// The file of initial weights does not fit the model.
    #[error("{0}")]
    Weights(WeightsError),
    /// The host or the GPU is out of memory.
    #[error(
        "{}out of memory: lower trainer.microBatchSize, or give the workers more memory; libtorch: {words}",
        rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default()
    )]
    OutOfMemory {
        /// The rank, if the error names it.
        rank: Option<u32>,
        /// The error message of libtorch.
        words: String,
    },
    /// The loaded NCCL is not the version that this program was compiled for.
    #[error(
        "NCCL {loaded} is loaded, and the trainer was compiled for NCCL {compiled}: use the trainer's image for GPUs \
         unchanged, or remove the other NCCL from LD_LIBRARY_PATH and LD_PRELOAD; a program of your own must be \
         compiled with the headers of the NCCL that its image has"
    )]
    NcclVersion {
        /// Version of the loaded library.
        loaded: String,
        /// Version of the headers at compile time.
        compiled: String,
    },
    /// A GPU cannot be used or has failed.
    #[error("{0}")]
    Device(String),
    /// libtorch refuses an operation.
    #[error("libtorch: {0}")]
    Torch(String),
    /// The process can no longer be a member of a generation.
    #[error(transparent)]
    Member(failure::Failure),
}

fn named(ranks: &[u32]) -> String {
    match ranks {
        [] => String::new(),
        [rank] => format!(" on rank {rank}"),
        ranks => {
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            format!(" on ranks {}", ranks.join(", "))
        }
    }
}

/// Describes the skipped steps before a step that is not finite.
fn after_skips(num: u64) -> String {
    match num {
        0 => String::new(),
        num => {
            format!(" and no step of the {num} before it was finite (trainer.maxConsecutiveSkips)")
        }
    }
}

impl Failure {
    /// The exit code of the process.
    #[must_use]
    pub const fn exit_code(&self) -> ExitCode {
        match self {
            Self::Environment(_)
            | Self::Config(_)
            | Self::Options(_)
            | Self::ConfigFile { .. }
            | Self::NcclVersion { .. }
            | Self::Diverged { .. } => ExitCode::ConfigInvalid,
            Self::Data { .. } | Self::Unreadable(_) | Self::Weights(_) => ExitCode::DataInvalid,
            Self::Device(_) => ExitCode::HardwareFault,
            Self::OutOfMemory { .. } | Self::Torch(_) => ExitCode::Internal,
            Self::Member(failure) => failure.exit_code(),
        }
    }

    /// The ending that the process reports: its exit code and its message.
    #[must_use]
    pub fn ending(&self) -> Ending {
        match self {
            Self::Member(failure) => failure.ending(),
            other => Ending {
                code: other.exit_code(),
                words: other.to_string(),
                newer: None,
            },
        }
    }

    /// Whether a peer or the store was lost. The process then waits for the next generation.
    #[must_use]
    pub const fn is_peer_lost(&self) -> bool {
        matches!(self, Self::Member(failure::Failure::PeerLost(_)))
    }

    /// Whether a process of the replica was lost. Then this process has to end, too.
    #[must_use]
    pub const fn is_replica_lost(&self) -> bool {
        matches!(self, Self::Member(failure::Failure::ReplicaLost(_)))
    }

    /// The failure for a lost peer or a lost store.
    #[must_use]
    pub const fn peer_lost(words: String) -> Self {
        Self::Member(failure::Failure::PeerLost(words))
    }

    /// The failure for a defect of this program.
    pub fn internal(words: impl Into<String>) -> Self {
        Self::Member(failure::Failure::Internal(words.into()))
    }

    /// The failure for a missing or corrupt data file.
    pub fn data(path: &Path, reason: impl Into<String>) -> Self {
        Self::Data {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }

    /// The failure for a failed file operation, for `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let failure_of = failure::Failure::io(path);
        move |error| failure_of(error).into()
    }
}

#[cfg(test)]
mod tests;
