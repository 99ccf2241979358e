//! Failures that end a process' membership, with the exit codes that report them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roundhouse_contract::ExitCode;
use roundhouse_contract::environment::COMPARE_REPLICAS;
use roundhouse_report::Ending;

use crate::checkpoint::VolumeError;
use crate::replicas::Difference;

/// A reason for people, and an exit code that decides about a retry.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A peer or the store was lost or did not come.
    #[error("{0}")]
    PeerLost(String),
    /// A process of this worker's replica is lost, so the replica has no whole state any more.
    #[error("{0}; the processes of this worker end and start together")]
    ReplicaLost(String),
    /// All ranks that had the state are lost, and no other rank has received it completely.
    #[error(
        "the state after step {step} of generation {generation} is lost: every rank that had it is gone, and no \
         other rank has received all of it; training restarts from the newest checkpoint or local copy, or from step 0 if \
         there is none"
    )]
    StateLost {
        /// Generation of the lost state.
        generation: u64,
        /// Number of committed steps in it.
        step: u64,
    },
    /// A newer generation than this process', or another process group with the same number, has
    /// written checkpoints or a ledger.
    #[error(
        "{}: another process group has written as generation {newer}; this one, of generation {generation}, \
         is superseded, or its job was created again over the checkpoints of an earlier job and needs \
         higher generations or another directory",
        dir.display()
    )]
    Fenced {
        dir: PathBuf,
        /// Generation of this process.
        generation: u64,
        newer: u64,
        /// Offset of the job's generations.
        first_generation: u64,
    },
    /// The ranks of a generation have versions that cannot work together.
    #[error(
        "rank {rank} of generation {generation} has protocol {protocol} of the ranks, and rank {other_rank} has protocol \
         {other}: their images have different versions of Roundhouse; give all workers the same image"
    )]
    OtherProtocol {
        generation: u64,
        rank: u32,
        protocol: u32,
        /// The other rank of the generation.
        other_rank: u32,
        other: u32,
    },
    /// The checkpoint belongs to a different training.
    #[error(
        "{}: {difference}; give the job the configuration and data it had, or another checkpoint \
         volume",
        path.display()
    )]
    OtherTraining { path: PathBuf, difference: String },
    /// None of the existing checkpoints can be loaded.
    #[error(
        "{}: none of {number} checkpoints can be loaded; the newest: {reason}; move them away to \
         begin again",
        path.display()
    )]
    NoCheckpointUsable {
        path: PathBuf,
        number: usize,
        /// Error of the newest checkpoint.
        reason: VolumeError,
    },
    /// The final state could not be saved, so a complete training would have no result.
    #[error(
        "{}: training is complete, and the state after step {step} could not be saved: {reason}; it continues \
         from the newest checkpoint when the volume works again",
        dir.display()
    )]
    Unsaved {
        dir: PathBuf,
        step: u64,
        /// Why the save failed.
        reason: String,
    },
    /// The volume does not answer.
    #[error("{}: the volume has not answered for {} s", dir.display(), waited.as_secs())]
    VolumeSilent { dir: PathBuf, waited: Duration },
    /// The process left after a request.
    #[error("asked to leave; stopped after step {step}{kept}")]
    Left {
        step: u64,
        /// Location of the state after that step.
        kept: Kept,
    },
    /// This rank's state differs from the others', or no rank can know whose state is right.
    #[error(
        "{0}; a device computes wrong results, unless the workers have different processors or numbers of threads: \
         then their replicas differ by rounding ({COMPARE_REPLICAS}=false allows it)"
    )]
    ReplicasDiffer(Difference),
    /// The volume answers with an error.
    #[error("{0}")]
    Volume(#[from] VolumeError),
    /// The operating system refused access to a file that does not belong to the user.
    #[error("{}: {error}", path.display())]
    Io {
        path: PathBuf,
        error: std::io::Error,
    },
    /// The device or its driver failed; the text is from the training library.
    #[error("{0}")]
    Device(String),
    /// The host or the device has too little memory; the text is from the training library.
    #[error("{0}")]
    OutOfMemory(String),
    /// The bytes of the state could not be copied from or to the device; the text is from the
    /// training library.
    #[error("{0}")]
    State(String),
    /// A defect of Roundhouse.
    #[error("{0}")]
    Internal(String),
}

/// Where the state of a leaving process is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The process has trained no step.
    Untrained,
    /// The remaining ranks have it.
    Peers,
    /// A checkpoint contains it, or a newer state.
    Checkpoint,
    /// The state is lost, for this reason.
    Nowhere(String),
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untrained => Ok(()),
            Self::Peers => write!(f, "; the other ranks continue from there"),
            Self::Checkpoint => write!(f, "; a checkpoint holds its state"),
            Self::Nowhere(reason) => write!(f, "; no checkpoint holds its state: {reason}"),
        }
    }
}

impl Failure {
    /// Returns the exit code of the process.
    #[must_use]
    pub const fn exit_code(&self) -> ExitCode {
        match self {
            Self::OtherTraining { .. } | Self::OtherProtocol { .. } => ExitCode::ConfigInvalid,
            Self::NoCheckpointUsable { .. } => ExitCode::DataInvalid,
            Self::PeerLost(_)
            | Self::ReplicaLost(_)
            | Self::StateLost { .. }
            | Self::Fenced { .. } => ExitCode::PeerLost,
            Self::Unsaved { .. } | Self::VolumeSilent { .. } | Self::Volume(_) => {
                ExitCode::VolumeFailed
            }
            Self::Left { .. } => ExitCode::Left,
            Self::Device(_) | Self::ReplicasDiffer(_) => ExitCode::HardwareFault,
            Self::Io { .. } | Self::OutOfMemory(_) | Self::State(_) | Self::Internal(_) => {
                ExitCode::Internal
            }
        }
    }

    /// Returns the exit code and the last words of the process.
    #[must_use]
    pub fn ending(&self) -> Ending {
        Ending {
            code: self.exit_code(),
            words: self.to_string(),
            newer: match self {
                Self::Fenced {
                    newer,
                    first_generation,
                    ..
                } => Some(newer.saturating_sub(*first_generation)),
                _ => None,
            },
        }
    }

    /// Adds the path to the error of a file operation, for `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_peer_is_temporary() {
        let failure = Failure::PeerLost("gone".to_owned());
        assert_eq!(failure.exit_code(), ExitCode::PeerLost);
        assert!(!failure.exit_code().is_permanent());
    }

    #[test]
    fn ending_of_superseded_process_names_newer_generation() {
        let failure = Failure::Fenced {
            dir: PathBuf::from("/volume"),
            generation: 2,
            newer: 1_000_005,
            first_generation: 1_000_000,
        };
        let ending = failure.ending();
        assert_eq!((ending.code, ending.newer), (ExitCode::PeerLost, Some(5)));
        assert!(ending.words.contains("/volume"), "{}", ending.words);
    }
}
