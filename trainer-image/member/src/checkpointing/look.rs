//! Looking at the volume while a generation forms: a listing of its names, and the search for its newest checkpoint.
//! A thread waits for the volume.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use roundhouse_elastic::state::Names;
use roundhouse_report::say_error;

use super::Checkpointing;
use crate::checkpoint::{IdleTimer, Manifest, VolumeError, load};
use crate::failure::Failure;
use crate::faults;

/// Between two listings of a volume that answers with errors.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A listing that is under way.
#[derive(Debug)]
pub(super) struct Look {
    answer: Receiver<Result<Names, VolumeError>>,
    /// It was begun for an earlier generation: what was written since may not be in it.
    is_stale: bool,
}

/// The search for the newest checkpoint, under way.
#[derive(Debug)]
pub(crate) struct Search {
    found: Receiver<Result<Option<Manifest>, Failure>>,
    idle_timer: IdleTimer,
    started: Instant,
}

/// How far a search is.
#[derive(Debug)]
pub(crate) enum Searched {
    UnderWay,
    /// It has ended; with nothing, if there is no checkpoint.
    Done(Option<Box<Manifest>>),
}

impl Checkpointing {
    /// A generation forms: the volume is listed for it. A listing that is under way since an earlier generation is waited
    /// for first, so that a volume that hangs holds one thread and not one for each generation.
    pub(crate) fn begin_look(&mut self) {
        let pending = self.look.take().filter(|look| {
            look.answer
                .try_recv()
                .is_err_and(|error| error == std::sync::mpsc::TryRecvError::Empty)
        });
        self.look = match pending {
            Some(look) => Some(Look {
                is_stale: true,
                ..look
            }),
            None => self.list(),
        };
    }

    /// What the listing has found; `None` if it has not ended within this time.
    pub(crate) fn names(&mut self, timeout: Duration) -> Option<Names> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Some(look) = &self.look else {
                std::thread::sleep(left.min(RETRY_AFTER));
                self.look = self.list();
                return None;
            };
            match look.answer.recv_timeout(left) {
                Ok(Ok(names)) if !look.is_stale => {
                    self.look = None;
                    return Some(names);
                }
                Ok(Ok(_)) => self.look = self.list(),
                Ok(Err(volume_error)) => {
                    say_error(&format!("the checkpoints are not known: {volume_error}"));
                    self.look = None;
                }
                Err(RecvTimeoutError::Disconnected) => self.look = None,
                Err(RecvTimeoutError::Timeout) => return None,
            }
        }
    }

    fn list(&self) -> Option<Look> {
        let (sender, answer) = channel();
        let directory = self.directory.clone();
        let work = move || {
            faults::volume();
            // The process may form another generation by now.
            let _ = sender.send(directory.names());
        };
        let thread = std::thread::Builder::new().name("volume".to_owned());
        thread.spawn(work).ok().map(|_| Look {
            answer,
            is_stale: false,
        })
    }

    /// Begins to search the volume for the newest checkpoint that is not known to be damaged.
    ///
    /// # Errors
    /// The operating system refused the thread.
    pub(crate) fn begin_search(&self) -> Result<Search, Failure> {
        let (sender, found) = channel();
        let (directory, identity) = (self.directory.clone(), self.identity.clone());
        let table = self.table.clone();
        let work = move || {
            // The process may form another generation by now.
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

    /// How far the search is after this time at most.
    ///
    /// # Errors
    /// As [`load::find`], and [`Failure::VolumeSilent`].
    pub(crate) fn searched(
        &self,
        search: &mut Search,
        timeout: Duration,
    ) -> Result<Searched, Failure> {
        match search.found.recv_timeout(timeout) {
            Ok(found) => found.map(|found| Searched::Done(found.map(Box::new))),
            Err(RecvTimeoutError::Timeout) => {
                let still = search.idle_timer.look(self.directory.io_watch());
                self.check_io_timeout(still, search.started)
                    .map(|()| Searched::UnderWay)
            }
            Err(RecvTimeoutError::Disconnected) => Err(Failure::Internal(
                "the thread that searches the volume panicked".to_owned(),
            )),
        }
    }

    /// Ends a process for which the volume has not answered for too long.
    ///
    /// # Errors
    /// [`Failure::VolumeSilent`].
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
