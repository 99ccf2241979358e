//! Maps errors of libraries, of the data and of the models to failures of the process.

use roundhouse_c10d::ErrorKind;
use roundhouse_contract::trainer::ConfigInvalid;
use roundhouse_data::DataError;
use roundhouse_member::failure;
use tch::TchError;

use super::Failure;
use crate::models::BuildError;
use crate::source::SourceError;
use crate::weights::WeightsError;

/// Part of libtorch's message if `deterministic: true` is set and an operation is not
/// deterministic.
const NOT_DETERMINISTIC: &str = "does not have a deterministic implementation";

impl From<failure::Failure> for Failure {
    fn from(error: failure::Failure) -> Self {
        match error {
            failure::Failure::Device(words) => Self::Device(words),
            failure::Failure::OutOfMemory(words) => Self::OutOfMemory { rank: None, words },
            other => Self::Member(other),
        }
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

/// Whether a retry can help: the system refuses to read a file that exists.
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
            WeightsError::NothingToSkip { .. } => Self::Config(ConfigInvalid {
                field: "model.initFrom.skip",
                message: error.to_string(),
            }),
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
    /// The failure for an error of the memory, the device or the configuration. Returns the message
    /// if the error is of no such kind.
    fn of_kind(kind: ErrorKind, words: String) -> Result<Self, String> {
        match kind {
            ErrorKind::OutOfMemory => Ok(Self::OutOfMemory { rank: None, words }),
            ErrorKind::Device => Ok(Self::Device(words)),
            ErrorKind::Other if words.contains(NOT_DETERMINISTIC) => {
                Ok(Self::Config(ConfigInvalid {
                    field: "deterministic",
                    message: format!(
                        "cannot be true for this model, for which libtorch has no such kernel: remove it; libtorch: {words}"
                    ),
                }))
            }
            ErrorKind::ConnectionLost | ErrorKind::Timeout | ErrorKind::Other => Err(words),
        }
    }

    /// Adds the rank to a failure that can name it.
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

    /// Whether the cause is local (memory, device or configuration) rather than a lost peer.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        matches!(
            self,
            Self::OutOfMemory { .. } | Self::Device(_) | Self::Config(_)
        )
    }
}

/// Maps an error of c10d to a failure of the member.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn lost(error: roundhouse_c10d::Error) -> failure::Failure {
    let words = error.to_string();
    match error.kind {
        ErrorKind::ConnectionLost | ErrorKind::Timeout => failure::Failure::PeerLost(words),
        ErrorKind::OutOfMemory => failure::Failure::OutOfMemory(words),
        ErrorKind::Device => failure::Failure::Device(words),
        ErrorKind::Other => failure::Failure::Internal(words),
    }
}

/// Maps an error of libtorch while it copies bytes of the state to a failure of the member.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn refused(error: TchError) -> failure::Failure {
    let words = error.to_string();
    match ErrorKind::of_message(&words) {
        ErrorKind::OutOfMemory => failure::Failure::OutOfMemory(words),
        ErrorKind::Device => failure::Failure::Device(words),
        ErrorKind::ConnectionLost | ErrorKind::Timeout | ErrorKind::Other => {
            failure::Failure::State(format!("libtorch: {words}"))
        }
    }
}
