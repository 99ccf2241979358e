//! Errors of reading data. Each message is one sentence that names the file or the key, and the
//! place.

use std::io;
use std::path::{Path, PathBuf};

/// The place of a record in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The whole file is the record.
    File,
    /// The record starts at this byte.
    Byte(u64),
    /// Number of the record or row, from 0.
    Record(u64),
    /// Number of the line of a text, from 1.
    Line(u64),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File => Ok(()),
            Self::Byte(offset) => write!(f, " at byte {offset}"),
            Self::Record(number) => write!(f, " at record {number}"),
            Self::Line(number) => write!(f, " at line {number}"),
        }
    }
}

/// The reason why data cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The system refuses to read or write the file.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file or directory violates its format. No policy skips this error.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// Path of the file or directory.
        path: PathBuf,
        /// Description of the violation.
        reason: String,
    },
    /// One record is corrupt. `onCorrupt: Skip` replaces it.
    #[error("{}{place}: {reason}", path.display())]
    Corrupt {
        /// Path of the file.
        path: PathBuf,
        /// Place of the record in the file.
        place: Place,
        /// Description of the damage.
        reason: String,
    },
    /// The configuration does not fit the data.
    #[error("trainer.{field}: {reason}")]
    Config {
        /// Path of the field below `trainer`.
        field: &'static str,
        /// Description of the conflict and of the change that solves it.
        reason: String,
    },
    /// A sample and all its replacements are corrupt.
    #[error("{num_tried} samples in a row are corrupt; the first: {first}")]
    TooManyCorrupt {
        /// Number of samples that were tried.
        num_tried: u32,
        /// Reason why the first sample cannot be read.
        first: Box<Self>,
    },
    /// A thread of the prefetcher has panicked, which is a defect of a decoder.
    #[error("a data reader has panicked while it read sample {sample}")]
    ReaderPanicked {
        /// Number of the sample.
        sample: u64,
    },
    /// The number of a sample is outside the data set, which is a defect of the caller.
    #[error("sample {sample} does not exist; the data set has {num_samples}")]
    NoSuchSample {
        /// Number of the sample.
        sample: u64,
        /// Number of samples in the data set.
        num_samples: u64,
    },
}

impl DataError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    pub(crate) fn invalid(path: &Path, reason: impl Into<String>) -> Self {
        Self::Invalid {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }

    pub(crate) fn corrupt(path: &Path, place: Place, reason: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.to_owned(),
            place,
            reason: reason.into(),
        }
    }

    pub(crate) fn config(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Config {
            field,
            reason: reason.into(),
        }
    }

    /// Error for a format whose cargo feature is off.
    #[cfg(not(all(feature = "parquet", feature = "text")))]
    pub(crate) fn not_built_in(format: &str) -> Self {
        Self::config("data.format", format!("{format} was not built in"))
    }

    /// Whether only one record is affected, so that another can replace it.
    #[must_use]
    pub const fn is_one_record(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }
}
