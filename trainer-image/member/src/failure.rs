//! Why a process can no longer be a member, and the exit code that says so.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roundhouse_contract::ExitCode;
use roundhouse_contract::environment::COMPARE_REPLICAS;
use roundhouse_report::Ending;

use crate::checkpoint::VolumeError;
use crate::replicas::Difference;

/// One sentence for people, and what it means for a retry.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A peer or the store was lost, or did not come.
    #[error("{0}")]
    PeerLost(String),
    /// Every rank that had the state is gone, and no other rank has received all of it.
    #[error(
        "the state after step {step} of generation {generation} is lost: every rank that had it is gone, and no \
         other rank has received all of it; training begins again from the newest checkpoint, if there is one"
    )]
    StateLost {
        /// Generation of the state that is lost.
        generation: u64,
        /// Its committed steps.
        step: u64,
    },
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
        /// What is added to the job's generations.
        first_generation: u64,
    },
    /// The ranks of a generation are of versions that cannot work together.
    #[error(
        "rank {rank} of generation {generation} has protocol {protocol} of the ranks, and rank {other_rank} has protocol \
         {other}: their images have different versions of Roundhouse; give all workers the same image"
    )]
    OtherProtocol {
        /// The generation.
        generation: u64,
        /// Of this process.
        rank: u32,
        /// Of this process.
        protocol: u32,
        /// Another rank of the generation.
        other_rank: u32,
        /// Its protocol.
        other: u32,
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
        reason: VolumeError,
    },
    /// The last state could not be written, so that training would be complete without a result.
    #[error(
        "{}: training is complete, and the state after step {step} could not be saved: {reason}; it continues \
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
    #[error("asked to leave; stopped after step {step}{kept}")]
    Left {
        /// Committed steps.
        step: u64,
        /// Where the state after that step is.
        kept: Kept,
    },
    /// This rank's state is not that of the others, or no rank can know whose state is right.
    #[error(
        "{0}; a device computes wrong, unless the workers have other kinds of processors or numbers of threads: their \
         replicas differ by rounding ({COMPARE_REPLICAS}=false allows it)"
    )]
    ReplicasDiffer(Difference),
    /// The volume answers with errors.
    #[error("{0}")]
    Volume(#[from] VolumeError),
    /// The operating system refused a file that is not the user's.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        error: std::io::Error,
    },
    /// The device or its driver has failed, in the words of the library that trains.
    #[error("{0}")]
    Device(String),
    /// The host or the device has too little memory, in the words of the library that trains.
    #[error("{0}")]
    OutOfMemory(String),
    /// The bytes of the state could not be copied from or to where they are trained on; in the words of the library
    /// that trains.
    #[error("{0}")]
    State(String),
    /// A defect of ours.
    #[error("{0}")]
    Internal(String),
}

/// Where the state of a process that leaves is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The process has trained no step.
    Untrained,
    /// The ranks that stay have it.
    Peers,
    /// A checkpoint holds it, or a newer one.
    Checkpoint,
    /// It is lost, for this reason.
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
    /// The code the process exits with.
    #[must_use]
    pub const fn exit_code(&self) -> ExitCode {
        match self {
            Self::OtherTraining { .. } | Self::OtherProtocol { .. } => ExitCode::ConfigInvalid,
            Self::NoCheckpointUsable { .. } => ExitCode::DataInvalid,
            Self::PeerLost(_) | Self::StateLost { .. } | Self::Fenced { .. } => ExitCode::PeerLost,
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

    /// How the process ends.
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

    /// A file operation that failed, for `map_err`.
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
