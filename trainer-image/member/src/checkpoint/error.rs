//! Errors of files and directories on the volume. They are rendered once, where they are reported.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use safetensors::SafeTensorError;

use super::manifest::SCHEMA_VERSION;

/// How long an operation is retried after temporary errors. A longer error counts as damage:
/// training can continue from an older checkpoint, and this one stays on the volume.
const RETRY_FOR: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// A file or directory on the volume that cannot be used or written, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct VolumeError {
    /// Path of the file or directory.
    pub path: PathBuf,
    pub reason: Reason,
}

/// Reason why a file or directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// Error of the operating system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Error of the operating system for one file of a checkpoint.
    #[error("{0}: {1}")]
    OfFile(String, io::Error),
    /// The file system does not support an operation that checkpoints need. All later saves would
    /// fail too.
    #[error(
        "the file system does not {0} ({1}), and checkpoints need that; use NFS, CephFS or another POSIX file system \
         (gcsfuse needs --rename-dir-limit, Mountpoint for S3 cannot)"
    )]
    Refused(Operation, io::Error),
    /// The file is not JSON with the expected fields.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The file is not in safetensors format, or lacks a tensor.
    #[error(transparent)]
    Safetensors(#[from] SafeTensorError),
    /// The file with the job's number has no complete line.
    #[error("is cut off; if it stays so, delete it: a process that starts writes it again")]
    NoWholeLine,
    /// The file with the job's number does not contain a number.
    #[error(
        "is not the number of a job's first generation; delete it: a process that starts writes it again"
    )]
    NoNumber,
    /// The generation is too large: no job could have a later one.
    #[error("is of a generation that no training can have; move it away")]
    NoGeneration,
    /// The file is larger than any manifest.
    #[error("is too large for a manifest")]
    TooLarge,
    /// The manifest has an unknown format version.
    #[error("has schema version {0}; this program reads {SCHEMA_VERSION}")]
    SchemaVersion(u32),
    /// The manifest names a file outside of its directory.
    #[error("{0:?} is not a file of this checkpoint")]
    Outside(String),
    /// A part contains a tensor that the state lacks.
    #[error("{0} is no tensor")]
    NoTensor(String),
    /// A tensor in a part has the wrong length.
    #[error("{0} has another length than the manifest says")]
    Length(String),
    /// The bytes differ from those that were written.
    #[error("its checksum is not that of the manifest")]
    Checksum,
    /// Rank 0 does not find the record of a part.
    #[error("{0} is not here though its rank wrote it; all workers must share one volume")]
    NotShared(String),
    /// A part is truncated although its rank waited until it was durable.
    #[error(
        "{file} has {found} of {whole} bytes though its rank wrote them all; the volume has lost the rest"
    )]
    CutShort {
        /// File name of the part.
        file: String,
        /// Its size in bytes.
        found: u64,
        /// Its expected size in bytes.
        whole: u64,
    },
    /// The manifest contradicts the directory's name.
    #[error("its manifest is that of another checkpoint")]
    OtherCheckpoint,
    /// The manifest contradicts itself about the training.
    #[error("its configuration hash is wrong")]
    ConfigHash,
    /// A rank has read the checkpoint and found damage.
    #[error("the rank that read it found damage; its log says what")]
    Damaged,
    /// A rank tried to read the checkpoint, and the volume answered with errors.
    #[error("the volume did not give the rank that read it all bytes; its log says why")]
    Unread,
    /// The state could not be copied from the device.
    #[error("the state was not copied from the device: {0}")]
    NotCopied(String),
    /// Some bytes are in no part or in two.
    #[error("its parts do not cover the state")]
    Parts,
    /// The ledger lines in a manifest are damaged.
    #[error("line {0} of its part of the ledger is corrupt")]
    LedgerLine(u64),
    /// The manifest contradicts itself about the step.
    #[error("its ledger is that of another step")]
    LedgerStep,
}

/// Operations of the file system that checkpoints and ledger need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Each checkpoint is a directory.
    MakeDirectory,
    Write,
    /// Gives a checkpoint its name.
    RenameDirectory,
    /// Used for scores that come after a save, and for `best.json`.
    ReplaceFile,
    /// Used for the number of a job, and for ledgers.
    NameOnce,
    /// Makes the names in a directory durable.
    SyncDirectory,
    /// Used for old checkpoints.
    Remove,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::MakeDirectory => "make directories",
            Self::Write => "write files and make them durable (fsync)",
            Self::RenameDirectory => "rename a directory that holds files",
            Self::ReplaceFile => "replace a file by renaming another one",
            Self::NameOnce => "create a file only if there is none of its name",
            Self::SyncDirectory => "make the names in a directory durable (fsync)",
            Self::Remove => "remove directories and files",
        })
    }
}

impl Reason {
    /// Classifies the error of an operation. Mounts of object stores refuse unsupported operations
    /// with various errors. For the rename of a directory gcsfuse returns "too many open files",
    /// which normally is an error of this process.
    pub(super) fn of(operation: Operation, error: io::Error) -> Self {
        let too_many_files = Errno::from_io_error(&error) == Some(Errno::MFILE);
        if is_refusal(&error) && (!too_many_files || operation == Operation::RenameDirectory) {
            return Self::Refused(operation, error);
        }
        error.into()
    }
}

/// Whether an error means that the file system does not support the operation.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    const REFUSALS: [Errno; 6] = [
        Errno::MFILE,
        Errno::NOSYS,
        Errno::NOTSUP,
        Errno::OPNOTSUPP,
        Errno::PERM,
        Errno::XDEV,
    ];
    Errno::from_io_error(error).is_some_and(|errno| REFUSALS.contains(&errno))
}

/// Whether an error means that nothing exists at a path.
pub(super) fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

impl VolumeError {
    /// Whether the volume failed to answer. The file may be whole and readable later.
    #[must_use]
    pub fn is_of_the_volume(&self) -> bool {
        let is_refused = self.io().is_some_and(|error| !is_absence(error));
        is_refused || matches!(self.reason, Reason::Unread)
    }

    /// Whether the operating system reported the error, as opposed to wrong contents.
    #[must_use]
    pub fn is_io(&self) -> bool {
        self.io().is_some()
    }

    /// Whether nothing exists at the path.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        self.io().is_some_and(is_absence)
    }

    fn io(&self) -> Option<&io::Error> {
        match &self.reason {
            Reason::Io(error) | Reason::OfFile(_, error) => Some(error),
            _ => None,
        }
    }

    /// Whether a retry may succeed soon: after a server restart, with a stale handle, or while the
    /// file is still being written.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        const PASSING: [Errno; 13] = [
            Errno::AGAIN,
            Errno::BUSY,
            Errno::CONNRESET,
            Errno::HOSTDOWN,
            Errno::HOSTUNREACH,
            Errno::INTR,
            Errno::IO,
            Errno::NETDOWN,
            Errno::NETUNREACH,
            Errno::NOTCONN,
            Errno::SHUTDOWN,
            Errno::STALE,
            Errno::TIMEDOUT,
        ];
        let errno = self.io().and_then(Errno::from_io_error);
        errno.is_some_and(|errno| PASSING.contains(&errno))
            || matches!(self.reason, Reason::NoWholeLine)
    }

    /// Adds a path to a reason, for `map_err`.
    pub fn with<E: Into<Reason>>(path: &Path) -> impl Fn(E) -> Self {
        move |reason| Self {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }
}

/// Retries while an error may be temporary. Skipping a checkpoint for a temporary error would lose
/// the steps since the one before.
pub(crate) fn steadily<T>(
    mut attempt: impl FnMut() -> Result<T, VolumeError>,
) -> Result<T, VolumeError> {
    let mut end = None;
    loop {
        match attempt() {
            // The time starts at the first error, because reading a part may take longer than the
            // retries.
            Err(volume_error)
                if volume_error.may_pass()
                    && Instant::now() < *end.get_or_insert_with(|| Instant::now() + RETRY_FOR) =>
            {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_handle_is_temporary_and_missing_file_is_not() {
        let may_pass = |errno: Errno| {
            let error: io::Error = errno.into();
            VolumeError::with(Path::new("part"))(error).may_pass()
        };
        assert!(may_pass(Errno::STALE) && may_pass(Errno::IO));
        assert!(!may_pass(Errno::NOENT) && !may_pass(Errno::LOOP));
    }

    #[test]
    fn refused_rename_differs_from_full_volume() {
        for refusal in [Errno::MFILE, Errno::NOSYS, Errno::OPNOTSUPP, Errno::PERM] {
            let words = Reason::of(Operation::RenameDirectory, refusal.into()).to_string();
            assert!(
                words.contains("does not rename a directory")
                    && words.contains("gcsfuse needs --rename-dir-limit"),
                "{words}"
            );
        }
        for errno in [Errno::NOSPC, Errno::ROFS, Errno::IO, Errno::STALE] {
            let reason = Reason::of(Operation::RenameDirectory, errno.into());
            assert!(matches!(reason, Reason::Io(_)), "{reason}");
        }
    }
}
