//! The thread that writes local copies, and lets other pods hold them.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use roundhouse_elastic::CheckpointId;

use super::file::{self, Kind};
use super::volumes::{Volumes, VolumesError};
use crate::failure::Failure;
use crate::faults::{self, Point};
use crate::state::Snapshot;

/// What the thread does next.
#[derive(Debug)]
pub(super) enum Request {
    Write(Write),
    /// Lets other pods hold a copy that this process has read, so that it is safe again.
    Share {
        id: CheckpointId,
        volumes: Volumes,
    },
}

/// A copy to write.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) id: CheckpointId,
    pub(super) rank: u32,
    /// End of the step.
    pub(super) begun: Instant,
    pub(super) volumes: Volumes,
    pub(super) kind: Kind,
    pub(super) words: Vec<u8>,
    pub(super) snapshot: Box<dyn Snapshot>,
}

/// The end of a request.
#[derive(Debug)]
pub(super) enum Done {
    /// With the memory of the snapshot.
    Written(Written, Box<dyn Snapshot>),
    Shared(Result<(), NotWritten>),
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
    Own { path: PathBuf, error: io::Error },
    #[error("{0}")]
    Volumes(VolumesError),
}

/// Fulfils all requests in their order.
pub(super) fn serve(requests: &Receiver<Request>, done: &Sender<Done>, is_discarded: &AtomicBool) {
    while let Ok(request) = requests.recv() {
        let end = match request {
            Request::Write(mut copy) => {
                let result = write(&mut copy, is_discarded);
                let written = Written {
                    step: copy.id.step,
                    duration: copy.begun.elapsed(),
                    result,
                };
                Done::Written(written, copy.snapshot)
            }
            Request::Share { id, volumes } => Done::Shared(share(id, &volumes)),
        };
        if done.send(end).is_err() {
            return;
        }
    }
}

/// Deletes what is not kept, writes the copy, and sends it to its other places.
fn write(copy: &mut Write, is_discarded: &AtomicBool) -> Result<(), NotWritten> {
    let (rank, id, volumes) = (copy.rank, copy.id, &copy.volumes);
    let row = copy.snapshot.bytes()?;
    let path = volumes.directory.path(volumes.shard, id);
    let own = |error| NotWritten::Own {
        path: path.clone(),
        error,
    };
    let contents = volumes.contents().map_err(NotWritten::Volumes)?;
    volumes.sweep(&contents).map_err(NotWritten::Volumes)?;
    let kept = volumes.placement.kept(&contents);
    (volumes.directory.keep(volumes.shard, kept)).map_err(own)?;
    faults::point(Point::CopyBegun, rank, id.step);
    let write = |partial: &std::path::Path| {
        file::write(partial, &copy.kind, &copy.words, row)?;
        faults::point(Point::CopyWritten, rank, id.step);
        if is_discarded.load(Ordering::Relaxed) {
            return Err(io::Error::other("the state of this step is suspect"));
        }
        Ok(())
    };
    (volumes.directory.complete(volumes.shard, id, write)).map_err(own)?;
    faults::point(Point::CopyComplete, rank, id.step);
    let places = volumes.placement.pods_of(volumes.shard);
    (volumes.share(id, kept, places)).map_err(NotWritten::Volumes)
}

fn share(id: CheckpointId, volumes: &Volumes) -> Result<(), NotWritten> {
    let share = || {
        let contents = volumes.contents()?;
        let kept = volumes.placement.newest_safe(&contents);
        let lacking = volumes.placement.missing(&contents, volumes.shard, id);
        volumes.share(id, kept, lacking)
    };
    share().map_err(NotWritten::Volumes)
}
