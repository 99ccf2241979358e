//! What is wrong with something on the volume. Rendered once, where it is told to people.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use safetensors::SafeTensorError;

use super::manifest::SCHEMA_VERSION;

/// How long an error is waited out that may pass. One that lasts is taken for damage: training can continue from an older
/// checkpoint, and this one stays on the volume.
const RETRY_FOR: Duration = Duration::from_secs(10);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(100);

/// Something on the volume that cannot be used or written: which, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct VolumeError {
    /// A file or a directory.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: Reason,
}

/// What can be wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The operating system says so.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The same, of one of a checkpoint's files.
    #[error("{0}: {1}")]
    OfFile(String, io::Error),
    /// The file system cannot do something that checkpoints need, which no later save can change.
    #[error(
        "the file system does not {0} ({1}), and checkpoints need that; use NFS, CephFS or another POSIX file system \
         (gcsfuse needs --rename-dir-limit, Mountpoint for S3 cannot)"
    )]
    Refused(Operation, io::Error),
    /// It is not JSON, or not with the expected fields.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It is no safetensors file, or lacks a tensor.
    #[error(transparent)]
    Safetensors(#[from] SafeTensorError),
    /// The job's number file lacks the end of its line.
    #[error("is cut off; if it stays so, delete it: a process that starts writes it again")]
    NoWholeLine,
    /// The job's number file is not a number.
    #[error(
        "is not the number of a job's first generation; delete it: a process that starts writes it again"
    )]
    NoNumber,
    /// No job counts so far, and none could count on from there.
    #[error("is of a generation that no training can have; move it away")]
    NoGeneration,
    /// A manifest is never so large.
    #[error("is too large for a manifest")]
    TooLarge,
    /// It has another format.
    #[error("has schema version {0}; this program reads {SCHEMA_VERSION}")]
    SchemaVersion(u32),
    /// The manifest names a file that lies elsewhere.
    #[error("{0:?} is no file of it")]
    Outside(String),
    /// A part holds what the state does not have.
    #[error("{0} is no tensor")]
    NoTensor(String),
    /// A tensor in a part is shorter or longer than it should be.
    #[error("{0} has another length than the manifest says")]
    Length(String),
    /// The bytes are not those that were written.
    #[error("its checksum is not that of the manifest")]
    Checksum,
    /// The record of a part is not where rank 0 looks.
    #[error("{0} is not here though its rank wrote it; all workers must share one volume")]
    NotShared(String),
    /// A part lacks its end though its rank has waited until it was durable.
    #[error(
        "{file} has {found} of {whole} bytes though its rank wrote them all; the volume has lost the rest"
    )]
    CutShort {
        /// The part.
        file: String,
        /// Bytes that it has.
        found: u64,
        /// Bytes that it should have.
        whole: u64,
    },
    /// The manifest and the directory's name contradict each other.
    #[error("its manifest is that of another checkpoint")]
    OtherCheckpoint,
    /// The manifest contradicts itself about what was trained.
    #[error("its configuration hash is wrong")]
    ConfigHash,
    /// A rank has read its bytes, and something was wrong with them.
    #[error("the rank that read it found damage; its log says what")]
    Damaged,
    /// A rank has tried to read its bytes, and the volume has answered with errors.
    #[error("the volume did not give the rank that read it all bytes; its log says why")]
    Unread,
    /// What was to be written there has not come from the device.
    #[error("the state was not copied from the device: {0}")]
    NotCopied(String),
    /// Some bytes are in no part, or in two.
    #[error("its parts are not the whole")]
    Parts,
    /// The end of the ledger in a manifest is damaged.
    #[error("line {0} of its end of the ledger is not what was written")]
    LedgerLine(u64),
    /// The manifest contradicts itself about the step.
    #[error("its ledger is that of another step")]
    LedgerStep,
}

/// What checkpoints and ledger need of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// For a checkpoint.
    MakeDirectory,
    /// For all files.
    Write,
    /// A checkpoint gets its name so.
    RenameDirectory,
    /// For scores that come later, and for the name of the best checkpoint.
    ReplaceFile,
    /// For the number of a job, and for ledgers.
    NameOnce,
    /// A name has to be durable, too.
    SyncDirectory,
    /// Old checkpoints go.
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
    /// Why an operation has failed. Mounts of object stores refuse what they cannot do, each with another error. For the
    /// rename of a directory gcsfuse says "too many open files", which elsewhere says that of this process.
    pub(super) fn of(operation: Operation, error: io::Error) -> Self {
        let too_many_files = Errno::from_io_error(&error) == Some(Errno::MFILE);
        if is_refusal(&error) && (!too_many_files || operation == Operation::RenameDirectory) {
            return Self::Refused(operation, error);
        }
        error.into()
    }
}

/// Whether an error says that the file system cannot do this at all.
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

/// Whether an error says that there is nothing at a path.
pub(super) fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

impl VolumeError {
    /// Whether the volume did not answer as it should. What is there may be whole, and may be read the next time.
    #[must_use]
    pub fn is_of_the_volume(&self) -> bool {
        let is_refused = self.io().is_some_and(|error| !is_absence(error));
        is_refused || matches!(self.reason, Reason::Unread)
    }

    /// Whether the operating system said so, and not what was read.
    #[must_use]
    pub fn is_io(&self) -> bool {
        self.io().is_some()
    }

    /// Whether there is nothing at the path.
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

    /// Whether the same may succeed in a moment: a server that answers again, a handle that has become stale, a file that
    /// is just being written.
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

    /// VolumeError with a path, for `map_err`.
    pub fn with<E: Into<Reason>>(path: &Path) -> impl Fn(E) -> Self {
        move |reason| Self {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }
}

/// Tries again while an error may pass. To pass over a checkpoint for it would lose the steps since the one before.
pub(crate) fn steadily<T>(
    mut attempt: impl FnMut() -> Result<T, VolumeError>,
) -> Result<T, VolumeError> {
    let mut end = None;
    loop {
        match attempt() {
            // To read a part may take longer than that.
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
