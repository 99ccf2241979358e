//! Reads the volume while a generation forms: lists its names and searches for its newest
//! checkpoint, in threads that wait for the volume.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use roundhouse_elastic::state::Names;
use roundhouse_report::say_error;

use super::Checkpointing;
use crate::checkpoint::{IdleTimer, Manifest, VolumeError, load};
use crate::failure::Failure;
use crate::faults;

/// Pause between two listings of a volume that answers with errors.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A listing in progress.
#[derive(Debug)]
pub(super) struct Listing {
    answer: Receiver<Result<Names, VolumeError>>,
    /// Whether it began for an earlier generation and may lack what was written since.
    is_stale: bool,
}

/// A search for the newest checkpoint in progress.
#[derive(Debug)]
pub(crate) struct Search {
    found: Receiver<Result<Option<Manifest>, Failure>>,
    idle_timer: IdleTimer,
    started: Instant,
}

/// Progress of a search.
#[derive(Debug)]
pub(crate) enum Searched {
    UnderWay,
    /// The search has ended; `None` if there is no checkpoint.
    Done(Option<Box<Manifest>>),
}

impl Checkpointing {
    /// Lists the volume for a new generation. A listing that an earlier generation began is awaited
    /// first, so that a hanging volume blocks one thread and not one per generation.
    pub(crate) fn begin_listing(&mut self) {
        let pending = self.listing.take().filter(|listing| {
            listing
                .answer
                .try_recv()
                .is_err_and(|error| error == std::sync::mpsc::TryRecvError::Empty)
        });
        self.listing = match pending {
            Some(listing) => Some(Listing {
                is_stale: true,
                ..listing
            }),
            None => self.list(),
        };
    }

    /// Result of the listing; `None` if it does not end within `timeout`.
    pub(crate) fn names(&mut self, timeout: Duration) -> Option<Names> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Some(listing) = &self.listing else {
                std::thread::sleep(left.min(RETRY_AFTER));
                self.listing = self.list();
                return None;
            };
            match listing.answer.recv_timeout(left) {
                Ok(Ok(names)) if !listing.is_stale => {
                    self.listing = None;
                    return Some(names);
                }
                Ok(Ok(_)) => self.listing = self.list(),
                Ok(Err(volume_error)) => {
                    say_error(&format!("the checkpoints are not known: {volume_error}"));
                    self.listing = None;
                }
                Err(RecvTimeoutError::Disconnected) => self.listing = None,
                Err(RecvTimeoutError::Timeout) => return None,
            }
        }
    }

    fn list(&self) -> Option<Listing> {
        let (sender, answer) = channel();
        let directory = self.directory.clone();
        let work = move || {
            faults::volume();
            // The receiver is gone if the process forms another generation by now.
            let _ = sender.send(directory.names());
        };
        let thread = std::thread::Builder::new().name("volume".to_owned());
        thread.spawn(work).ok().map(|_| Listing {
            answer,
            is_stale: false,
        })
    }

    /// Begins to search the volume for the newest checkpoint that is not known to be damaged.
    ///
    /// # Errors
    /// [`Failure::Internal`] if the operating system refuses the thread.
    pub(crate) fn begin_search(&self) -> Result<Search, Failure> {
        let (sender, found) = channel();
        let (directory, identity) = (self.directory.clone(), self.identity.clone());
        let table = self.table.clone();
        let work = move || {
            // The receiver is gone if the process forms another generation by now.
            let _ = sender.send(load::find(&directory, &identity, &table));
        };
        std::thread::Builder::new()
            .name("volume".to_owned())
            .spawn(work)
            .map_err(|error| Failure::Internal(format!("no thread to search: {error}")))?;
        Ok(Search {
            found,
            idle_timer: IdleTimer::new(self.directory.io_watch()),
            started: Instant::now(),
        })
    }

    /// Progress of the search after at most `timeout`.
    ///
    /// # Errors
    /// Those of [`load::find`], and [`Failure::VolumeSilent`].
    pub(crate) fn searched(
        &self,
        search: &mut Search,
        timeout: Duration,
    ) -> Result<Searched, Failure> {
        match search.found.recv_timeout(timeout) {
            Ok(found) => found.map(|found| Searched::Done(found.map(Box::new))),
            Err(RecvTimeoutError::Timeout) => {
                let still = search.idle_timer.elapsed(self.directory.io_watch());
                self.check_io_timeout(still, search.started)
                    .map(|()| Searched::UnderWay)
            }
            Err(RecvTimeoutError::Disconnected) => Err(Failure::Internal(
                "the thread that searches the volume panicked".to_owned(),
            )),
        }
    }

    /// Fails if the volume has not answered for too long.
    ///
    /// # Errors
    /// [`Failure::VolumeSilent`] if the timeout has passed.
    pub(crate) fn check_io_timeout(&self, still: Duration, since: Instant) -> Result<(), Failure> {
        if !self.io_timeout.is_over(still) {
            return Ok(());
        }
        Err(Failure::VolumeSilent {
            dir: self.directory.root().to_owned(),
            waited: since.elapsed(),
        })
    }
}
