//! Why data cannot be read. Each message is one sentence that names the file, or the key, and the place.

use std::io;
use std::path::{Path, PathBuf};

/// Where in a file a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The whole file is the record.
    File,
    /// At this byte.
    Byte(u64),
    /// This record or row, from 0.
    Record(u64),
    /// This line of a text, from 1.
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

/// Why data cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The system refuses to read or write.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// A file or directory is not what its format demands. No policy skips this.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// One record is corrupt. `onCorrupt: Skip` replaces it.
    #[error("{}{place}: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: Place,
        /// What is wrong.
        reason: String,
    },
    /// The configuration does not fit the data.
    #[error("trainer.{field}: {reason}")]
    Config {
        /// Path of the field below `trainer`.
        field: &'static str,
        /// What does not fit, and what to change.
        reason: String,
    },
    /// A sample is corrupt and so are all that would replace it.
    #[error("{num_tried} samples in a row are corrupt; the first: {first}")]
    TooManyCorrupt {
        /// The sample and its replacements.
        num_tried: u32,
        /// Why the sample cannot be read.
        first: Box<Self>,
    },
    /// A thread of the prefetcher has panicked: a defect of a decoder.
    #[error("a data reader has panicked while it read sample {sample}")]
    ReaderPanicked {
        /// Number of the sample.
        sample: u64,
    },
    /// A number of a sample is outside the data set: a defect of the caller.
    #[error("sample {sample} does not exist; the data set has {num_samples}")]
    NoSuchSample {
        /// Number of the sample.
        sample: u64,
        /// Samples of the data set.
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

    /// A format whose cargo feature is off.
    #[cfg(not(all(feature = "parquet", feature = "text")))]
    pub(crate) fn not_built_in(format: &str) -> Self {
        Self::config("data.format", format!("{format} was not built in"))
    }

    /// Whether only one record is affected, so that another can take its place.
    #[must_use]
    pub const fn is_one_record(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }
}
