//! Why a process ends before its training is complete, and the exit code that says so.

use std::path::{Path, PathBuf};

use crate::weights::WeightsError;
use roundhouse_contract::ExitCode;
use roundhouse_contract::environment::EnvironmentInvalid;
use roundhouse_contract::trainer::{ConfigInvalid, OptionsInvalid};
use roundhouse_data::DataError;
use roundhouse_member::failure::{self, Ending};

mod from;

pub(crate) use from::{lost, refused};

/// One sentence for people, and what it means for a retry.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The environment lacks something.
    #[error(
        "{0}; the agent of a worker sets it: to train alone, give --config FILE --data-dir DIR (--help)"
    )]
    Environment(#[from] EnvironmentInvalid),
    /// The configuration has a value that cannot be run.
    #[error("{0}")]
    Config(#[from] ConfigInvalid),
    /// An option of a program of the user's own cannot be used.
    #[error("{0}")]
    Options(#[from] OptionsInvalid),
    /// The configuration file cannot be read, or is not a configuration.
    #[error("{}: {reason}", path.display())]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Gradients or loss are no longer finite; another run would end the same way.
    #[error(
        "step {step}: loss {loss}, gradient norm {gradient_norm}: training diverges{}{}; \
         lower trainer.optimizer.learningRate or add trainer.schedule.warmupSteps",
        named(ranks),
        after_skips(*skipped_before)
    )]
    Diverged {
        /// The step that was not committed, from 1.
        step: u64,
        /// Its mean loss over the global batch.
        loss: f64,
        /// Norm of its mean gradient.
        gradient_norm: f64,
        /// How many steps right before it were skipped, because they were not finite either.
        skipped_before: u64,
        /// The ranks whose own loss or gradient is not finite. None: only the sum over all ranks is not.
        ranks: Vec<u32>,
    },
    /// A data file is missing or corrupt.
    #[error("{}: {reason}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A data file is missing or corrupt, in the words of its format.
    #[error("{0}")]
    Unreadable(DataError),
    /// The file of initial weights does not fit the model.
    #[error("{0}")]
    Weights(WeightsError),
    /// The host or the GPU has too little memory.
    #[error(
        "{}out of memory: lower trainer.microBatchSize, or give the workers more memory; libtorch: {words}",
        rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default()
    )]
    OutOfMemory {
        /// The rank, if it is known.
        rank: Option<u32>,
        /// libtorch's words.
        words: String,
    },
    /// NCCL has another version than the one that this program was compiled for.
    #[error(
        "NCCL {loaded} is loaded, and the trainer was compiled for NCCL {compiled}: use the trainer's image for GPUs \
         unchanged, or remove the other NCCL from LD_LIBRARY_PATH and LD_PRELOAD; a program of your own must be \
         compiled with the headers of the NCCL that its image has"
    )]
    NcclVersion {
        /// Version of the library that is loaded.
        loaded: String,
        /// Version of the headers.
        compiled: String,
    },
    /// A GPU cannot be used, or has failed.
    #[error("{0}")]
    Device(String),
    /// libtorch refused an operation.
    #[error("libtorch: {0}")]
    Torch(String),
    /// It can no longer be a member of a generation.
    #[error(transparent)]
    Member(failure::Failure),
}

/// Which ranks, in words.
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

/// What went before a step that is not finite, in words.
fn after_skips(num: u64) -> String {
    match num {
        0 => String::new(),
        num => {
            format!(" and no step of the {num} before it was finite (trainer.maxConsecutiveSkips)")
        }
    }
}

impl Failure {
    /// The code the process exits with.
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

    /// How the process ends.
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

    /// Whether a peer or the store was lost: then the process waits for the next generation.
    #[must_use]
    pub const fn is_peer_lost(&self) -> bool {
        matches!(self, Self::Member(failure::Failure::PeerLost(_)))
    }

    /// A peer or the store was lost.
    #[must_use]
    pub const fn peer_lost(words: String) -> Self {
        Self::Member(failure::Failure::PeerLost(words))
    }

    /// A defect of ours.
    pub fn internal(words: impl Into<String>) -> Self {
        Self::Member(failure::Failure::Internal(words.into()))
    }

    /// A data file with something wrong.
    pub fn data(path: &Path, reason: impl Into<String>) -> Self {
        Self::Data {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }

    /// A file operation that failed, for `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let told = failure::Failure::io(path);
        move |error| told(error).into()
    }
}

#[cfg(test)]
mod tests;
