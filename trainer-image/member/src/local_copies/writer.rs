//! The thread that writes local copies, and stores them in other pods.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use roundhouse_elastic::CheckpointId;

use super::file::{self, Kind};
use super::holder::{Holder, Stored};
use super::volumes::{Volumes, VolumesError};
use crate::failure::Failure;
use crate::faults::{self, Point};
use crate::state::Snapshot;

/// What the thread does next.
#[derive(Debug)]
pub(super) enum Request {
    Write(NewCopy),
    /// Stores a copy that this process has read in its other places, so that it is safe again.
    Share {
        id: CheckpointId,
        volumes: Volumes,
    },
}

/// A copy to write.
#[derive(Debug)]
pub(super) struct NewCopy {
    pub(super) id: CheckpointId,
    pub(super) rank: u32,
    /// End of the step.
    pub(super) begun: Instant,
    pub(super) volumes: Volumes,
    pub(super) kind: Kind,
    pub(super) words: Vec<u8>,
    pub(super) snapshot: Box<dyn Snapshot>,
}

/// The end of a request, with the memory of its snapshot.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) ended: Ended,
    pub(super) snapshot: Option<Box<dyn Snapshot>>,
}

/// What the thread has done.
#[derive(Debug)]
pub(super) enum Ended {
    /// A copy is in all of its places, or could not be written.
    Written {
        /// Number of committed steps.
        step: u64,
        /// From the end of its step.
        duration: Duration,
        result: Result<(), NotWritten>,
        /// What the holder has; `None` if there is none, or if it may not know yet that it is one.
        stored: Option<Stored>,
    },
    Shared(Result<(), NotWritten>),
}

impl Ended {
    pub(super) const fn has_failed(&self) -> bool {
        let (Self::Written { result, .. } | Self::Shared(result)) = self;
        result.is_err()
    }

    /// Whether the holder has taken the copy; `None` if there is none.
    pub(super) fn has_taken_copy(&self) -> Option<bool> {
        match self {
            Self::Written { stored, .. } => stored.as_ref().map(Result::is_ok),
            Self::Shared(_) => None,
        }
    }
}

/// Why a copy was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotWritten {
    #[error(transparent)]
    State(#[from] Failure),
    #[error(transparent)]
    Volumes(#[from] VolumesError),
}

/// Fulfils all requests in their order.
pub(super) fn serve(requests: &Receiver<Request>, done: &Sender<Done>, is_discarded: &AtomicBool) {
    while let Ok(request) = requests.recv() {
        let end = match request {
            Request::Write(copy) => written(copy, is_discarded),
            Request::Share { id, volumes } => Done {
                ended: Ended::Shared(share(id, &volumes)),
                snapshot: None,
            },
        };
        if done.send(end).is_err() {
            return;
        }
    }
}

fn written(mut copy: NewCopy, is_discarded: &AtomicBool) -> Done {
    let result = write(&mut copy, is_discarded);
    let duration = copy.begun.elapsed();
    let holder = copy.volumes.holder.as_ref();
    let holder = holder.filter(|_| result.is_ok() && !is_discarded.load(Ordering::Relaxed));
    let stored = holder.and_then(|holder| send_to_holder(holder, &copy));
    Done {
        ended: Ended::Written {
            step: copy.id.step,
            duration,
            result,
            stored,
        },
        snapshot: Some(copy.snapshot),
    }
}

/// Deletes what is not kept, writes the copy, and stores it in its other places.
fn write(copy: &mut NewCopy, is_discarded: &AtomicBool) -> Result<(), NotWritten> {
    let (rank, id, volumes) = (copy.rank, copy.id, &copy.volumes);
    let row = copy.snapshot.bytes()?;
    let contents = volumes.contents()?;
    volumes.sweep(&contents)?;
    let kept = volumes.placement.kept(&contents);
    volumes.keep_newer(id, kept)?;
    faults::point(Point::CopyBegun, rank, id.step);
    faults::slow_copy_down();
    volumes.put(id, |path: &Path| {
        file::write(path, &copy.kind, &copy.words, row)?;
        faults::point(Point::CopyWritten, rank, id.step);
        if is_discarded.load(Ordering::Relaxed) {
            return Err(io::Error::other("the state of this step is suspect"));
        }
        Ok(())
    })?;
    faults::point(Point::CopyComplete, rank, id.step);
    if is_discarded.load(Ordering::Relaxed) {
        return Ok(());
    }
    Ok(volumes.share(id, kept, &contents)?)
}

fn share(id: CheckpointId, volumes: &Volumes) -> Result<(), NotWritten> {
    let contents = volumes.contents()?;
    let kept = volumes.placement.newest_safe(&contents);
    Ok(volumes.share(id, kept, &contents)?)
}

/// Sends a copy to the holder. `None` if a new holder refuses it: its processes may not know the
/// pair yet.
fn send_to_holder(holder: &Holder, copy: &NewCopy) -> Option<Stored> {
    let stored = holder.store(copy.id, &copy.volumes);
    (stored.is_ok() || !holder.is_new()).then_some(stored)
}
