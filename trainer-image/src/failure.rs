//! Why a process ends before its training is complete, and the exit code that says so.

use std::path::{Path, PathBuf};
use std::time::Duration;

use roundhouse_c10d::ErrorKind;
use roundhouse_contract::ExitCode;
use roundhouse_contract::environment::EnvironmentInvalid;
use roundhouse_contract::trainer::ConfigInvalid;
use tch::TchError;

use crate::checkpoint::Trouble;

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
        "step {step}: loss {loss}, gradient norm {gradient_norm}: training diverges; \
         lower trainer.optimizer.learningRate or add trainer.schedule.warmupSteps"
    )]
    Diverged {
        /// The step that was not committed, from 1.
        step: u64,
        /// Its loss on this rank's last samples.
        loss: f64,
        /// Norm of its gradient.
        gradient_norm: f64,
    },
    /// A data file is missing or corrupt.
    #[error("{}: {reason}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A peer or the store was lost, or did not come.
    #[error("{0}")]
    PeerLost(String),
    /// Everybody who had the state is gone, and nobody else has received all of it.
    #[error("nobody has the state of the training any more; it begins again")]
    StateLost,
    /// Checkpoints or ledger have been written by a newer generation than this process is in, or by
    /// another world with the same number.
    #[error(
        "{}: another world has written as generation {newer}; this one, of generation {generation}, \
         is superseded, or its job was created anew over the checkpoints of an earlier one and needs \
         higher generations or another directory",
        dir.display()
    )]
    Fenced {
        /// Where.
        dir: PathBuf,
        /// Generation of this process.
        generation: u64,
        /// The newer one.
        newer: u64,
    },
    /// The checkpoint is that of another training.
    #[error(
        "{}: {difference}; give the job the configuration and data it had, or another checkpoint \
         volume",
        path.display()
    )]
    OtherTraining {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        difference: String,
    },
    /// There are checkpoints, and none can be loaded.
    #[error(
        "{}: none of {number} checkpoints can be loaded; the newest: {reason}; move them away to \
         begin again",
        path.display()
    )]
    NoCheckpointUsable {
        /// Where they are.
        path: PathBuf,
        /// How many.
        number: usize,
        /// What is wrong with the newest.
        reason: Trouble,
    },
    /// The last state could not be written, so that training would be complete without a result.
    #[error(
        "{}: training is complete, and the state after step {step} could not be saved: {reason}; it goes on \
         from the newest checkpoint when the volume is mended",
        dir.display()
    )]
    Unsaved {
        /// Where.
        dir: PathBuf,
        /// Committed steps.
        step: u64,
        /// What kept it from being saved.
        reason: String,
    },
    /// The volume gives nothing.
    #[error("{}: the volume has not answered for {} s", dir.display(), waited.as_secs())]
    VolumeSilent {
        /// Where.
        dir: PathBuf,
        /// For how long.
        waited: Duration,
    },
    /// Asked to leave.
    #[error("asked to leave; stopped after step {step}")]
    Left {
        /// Committed steps.
        step: u64,
    },
    /// The operating system refused a file that is not the user's.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        error: std::io::Error,
    },
    /// libtorch refused an operation.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
    /// A defect of ours.
    #[error("{0}")]
    Internal(String),
}

impl Failure {
    /// The code the process exits with.
    #[must_use]
    pub const fn exit_code(&self) -> ExitCode {
        match self {
            Self::Environment(_)
            | Self::Config(_)
            | Self::ConfigFile { .. }
            | Self::OtherTraining { .. }
            | Self::Diverged { .. } => ExitCode::ConfigInvalid,
            Self::Data { .. } | Self::NoCheckpointUsable { .. } => ExitCode::DataInvalid,
            Self::PeerLost(_) | Self::StateLost | Self::Fenced { .. } => ExitCode::PeerLost,
            Self::Unsaved { .. } | Self::VolumeSilent { .. } => ExitCode::VolumeFailed,
            Self::Left { .. } => ExitCode::Left,
            Self::Io { .. } | Self::Torch(_) | Self::Internal(_) => ExitCode::Internal,
        }
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
        let path = path.to_owned();
        move |error| Self::Io { path, error }
    }
}

impl From<roundhouse_c10d::Error> for Failure {
    fn from(error: roundhouse_c10d::Error) -> Self {
        match error.kind {
            ErrorKind::ConnectionLost | ErrorKind::Timeout => Self::PeerLost(error.to_string()),
            ErrorKind::Other => Self::Internal(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_data_is_named_and_permanent() {
        let failure = Failure::data(Path::new("/data/x"), "is missing");
        assert_eq!(failure.to_string(), "/data/x: is missing");
        assert!(failure.exit_code().is_permanent());
    }

    #[test]
    fn a_lost_peer_is_temporary() {
        let failure = Failure::PeerLost("gone".to_owned());
        assert_eq!(failure.exit_code(), ExitCode::PeerLost);
        assert!(!failure.exit_code().is_permanent());
    }
}
