//! Why a process ends before its training is complete, and the exit code that says so.

use std::path::{Path, PathBuf};

use roundhouse_c10d::ErrorKind;
use roundhouse_contract::ExitCode;
use roundhouse_contract::environment::EnvironmentInvalid;
use roundhouse_contract::trainer::{ConfigInvalid, OptionsInvalid};
use roundhouse_data::DataError;
use roundhouse_member::failure::{self, Ending};
use tch::TchError;

use crate::models::BuildError;
use crate::source::SourceError;
use crate::weights::WeightsError;

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
    Member(#[from] failure::Failure),
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

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Data { path, reason } => Self::Data { path, reason },
            SourceError::Torch(error) => error.into(),
            SourceError::Format(error) => error.into(),
        }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Config { field, reason } => Self::Config(ConfigInvalid {
                field,
                message: reason,
            }),
            DataError::NoSuchSample { .. } | DataError::ReaderPanicked { .. } => {
                Self::internal(error.to_string())
            }
            DataError::Io { path, source } if is_passing(source.kind()) => Self::io(&path)(source),
            DataError::Io { .. }
            | DataError::Invalid { .. }
            | DataError::Corrupt { .. }
            | DataError::TooManyCorrupt { .. } => Self::Unreadable(error),
        }
    }
}

/// Whether another try may end otherwise: the system refuses to read a file that is there.
fn is_passing(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{
        InvalidData, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied,
        UnexpectedEof,
    };
    !matches!(
        kind,
        NotFound
            | PermissionDenied
            | InvalidData
            | InvalidInput
            | IsADirectory
            | NotADirectory
            | UnexpectedEof
    )
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Config(invalid) => invalid.into(),
            BuildError::Torch(error) => error.into(),
        }
    }
}

impl From<WeightsError> for Failure {
    fn from(error: WeightsError) -> Self {
        match error {
            WeightsError::Torch(error) => error.into(),
            other => Self::Weights(other),
        }
    }
}

impl From<TchError> for Failure {
    fn from(error: TchError) -> Self {
        let words = error.to_string();
        Self::of_kind(ErrorKind::of_message(&words), words).unwrap_or_else(Self::Torch)
    }
}

impl From<roundhouse_c10d::Error> for Failure {
    fn from(error: roundhouse_c10d::Error) -> Self {
        match Self::of_kind(error.kind, error.message) {
            Ok(failure) => failure,
            Err(message) => lost(roundhouse_c10d::Error {
                kind: error.kind,
                message,
            })
            .into(),
        }
    }
}

impl Failure {
    /// A failure of memory or of the device; the words are given back if it is neither.
    fn of_kind(kind: ErrorKind, words: String) -> Result<Self, String> {
        match kind {
            ErrorKind::OutOfMemory => Ok(Self::OutOfMemory { rank: None, words }),
            ErrorKind::Device => Ok(Self::Device(words)),
            ErrorKind::ConnectionLost | ErrorKind::Timeout | ErrorKind::Other => Err(words),
        }
    }

    /// The same, on a rank.
    #[must_use]
    pub fn on_rank(self, rank: u32) -> Self {
        match self {
            Self::OutOfMemory { words, .. } => Self::OutOfMemory {
                rank: Some(rank),
                words,
            },
            other => other,
        }
    }

    /// Whether memory or the device has failed: no peer is the cause.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::Device(_))
    }
}

/// What an error of c10d means for a member.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn lost(error: roundhouse_c10d::Error) -> failure::Failure {
    match error.kind {
        ErrorKind::ConnectionLost | ErrorKind::Timeout => {
            failure::Failure::PeerLost(error.to_string())
        }
        ErrorKind::OutOfMemory | ErrorKind::Device | ErrorKind::Other => {
            failure::Failure::Internal(error.to_string())
        }
    }
}

/// What an error of libtorch means where the bytes of the state are copied.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn refused(error: TchError) -> failure::Failure {
    failure::Failure::State(format!("libtorch: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_devices_that_fail_are_told_from_defects_and_from_peers() {
        let memory = "CUDA out of memory. Tried to allocate 20.00 MiB";
        let device = "CUDA error: uncorrectable ECC error encountered";
        for (words, code) in [
            (memory, ExitCode::Internal),
            (device, ExitCode::HardwareFault),
            ("shapes do not fit", ExitCode::Internal),
        ] {
            let failure = Failure::from(TchError::Torch(words.to_owned()));
            assert_eq!(failure.exit_code(), code, "{failure}");
            assert!(failure.to_string().contains(words), "{failure}");
        }
        let failure = Failure::from(TchError::Torch(memory.to_owned())).on_rank(3);
        let text = failure.to_string();
        assert!(
            text.contains("rank 3") && text.contains("trainer.microBatchSize"),
            "{text}"
        );
        assert!(failure.is_own() && !failure.is_peer_lost());
    }

    #[test]
    fn wrong_data_is_named_and_permanent() {
        let failure = Failure::data(Path::new("/data/x"), "is missing");
        assert_eq!(failure.to_string(), "/data/x: is missing");
        assert!(failure.exit_code().is_permanent());
    }

    #[test]
    fn a_training_that_diverges_names_the_ranks_that_did() {
        let words = |ranks: &[u32]| {
            let failure = Failure::Diverged {
                step: 3,
                loss: f64::NAN,
                gradient_norm: 2.0,
                skipped_before: 0,
                ranks: ranks.to_vec(),
            };
            failure.to_string()
        };
        assert!(
            words(&[]).contains("training diverges; lower"),
            "{}",
            words(&[])
        );
        assert!(words(&[4]).contains("diverges on rank 4; lower"));
        assert!(words(&[0, 2]).contains("diverges on ranks 0, 2; lower"));
    }
}
