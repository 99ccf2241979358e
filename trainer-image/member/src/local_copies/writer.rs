//! The thread that writes local copies.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use roundhouse_elastic::CheckpointId;

use super::PARTIAL;
use super::file::{self, Kind};
use crate::checkpoint::directory::sync_directory;
use crate::failure::Failure;
use crate::faults::{self, Point};
use crate::state::Snapshot;

/// A copy to write.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: CheckpointId,
    pub(super) rank: u32,
    /// End of the step.
    pub(super) begun: Instant,
    pub(super) path: PathBuf,
    /// Copies to delete first.
    pub(super) superseded: Vec<PathBuf>,
    pub(super) kind: Kind,
    pub(super) words: Vec<u8>,
    pub(super) snapshot: Box<dyn Snapshot>,
}

/// The end of a request, with the memory of its snapshot.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) written: Written,
    pub(super) snapshot: Box<dyn Snapshot>,
}

/// A copy that is complete or could not be written.
#[derive(Debug)]
pub(crate) struct Written {
    /// Number of committed steps.
    pub(crate) step: u64,
    /// From the end of its step until it was complete.
    pub(crate) duration: Duration,
    pub(crate) result: Result<(), NotWritten>,
}

/// Why a copy was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotWritten {
    #[error(transparent)]
    State(#[from] Failure),
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// Writes all requested copies in their order.
pub(super) fn write_all(
    requests: &Receiver<Request>,
    done: &Sender<Done>,
    is_discarded: &AtomicBool,
) {
    while let Ok(mut request) = requests.recv() {
        let result = write(&mut request, is_discarded);
        let Request {
            id,
            begun,
            snapshot,
            ..
        } = request;
        let written = Written {
            step: id.step,
            duration: begun.elapsed(),
            result,
        };
        if done.send(Done { written, snapshot }).is_err() {
            return;
        }
    }
}

/// Deletes the copies before, writes the next one, and gives it its name.
fn write(request: &mut Request, is_discarded: &AtomicBool) -> Result<(), NotWritten> {
    let row = request.snapshot.bytes()?;
    let partial = request.path.with_extension(PARTIAL);
    let (rank, step) = (request.rank, request.id.step);
    let written = || -> io::Result<()> {
        let directory = request.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(directory)?;
        for path in &request.superseded {
            remove(path)?;
        }
        faults::point(Point::CopyBegun, rank, step);
        file::write(&partial, &request.kind, &request.words, row)?;
        faults::point(Point::CopyWritten, rank, step);
        if is_discarded.load(Ordering::Relaxed) {
            return Err(io::Error::other("the state of this step is suspect"));
        }
        std::fs::rename(&partial, &request.path)?;
        sync_directory(directory)
    };
    written().map_err(|error| {
        let _ = std::fs::remove_file(&partial);
        NotWritten::Io {
            path: request.path.clone(),
            error,
        }
    })
}

/// Removes a file, if it exists.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
