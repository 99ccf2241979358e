//! Writes the ledger: rank 0 of a generation appends to its file in a thread, so that no step waits
//! for the volume. The file of a generation begins with the lines that may not be durable yet.
//!
//! The thread takes the lines every [`appender::WRITE_INTERVAL`]. Waking it for each step would
//! slow down short steps for little benefit: the other ranks still have the lines that are lost
//! with rank 0, and without other ranks training continues from a checkpoint, which waits for its
//! line.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roundhouse_elastic::ledger::{Beginning, LedgerIdentity, Repeats, Source};
use roundhouse_elastic::{Chain, Line};

use crate::checkpoint::Directory;
use crate::failure::Failure;

mod appender;
mod older;

use appender::{Appender, Sync};

/// State of the file, shared with the thread.
#[derive(Clone, Debug)]
struct State {
    /// Step of the last durable line.
    durable: u64,
    /// Whether the file exists durably: then it fences older generations.
    is_begun: bool,
    /// Number of attempts to make lines durable, including failed ones.
    num_tries: u64,
    /// Error of the last attempt.
    error: Option<String>,
    /// A newer generation that has written to the volume.
    fenced: Option<u64>,
    /// Steps that were committed, lost and repeated; `None` until known.
    repeats: Option<Repeats>,
    /// Time of the volume's last answer or error: every second, unless it hangs.
    answered_at: Instant,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn new(durable: u64) -> Self {
        Self {
            state: Mutex::new(State {
                durable,
                is_begun: false,
                num_tries: 0,
                error: None,
                fenced: None,
                repeats: None,
                answered_at: Instant::now(),
            }),
            changed: Condvar::new(),
        }
    }

    /// A thread that panicked has left complete values, so a poisoned lock is usable.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }
}

/// A generation that begins its ledger.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    pub generation: u64,
    /// The job's generations are larger than this.
    pub first_generation: u64,
    /// Source of the state with which the generation starts.
    pub source: Source,
}

impl Opening {
    /// Adds the ledger lines of the state.
    fn with(self, chain: &Chain) -> Beginning {
        let Self {
            generation,
            first_generation,
            source,
        } = self;
        Beginning {
            generation,
            first_generation,
            previous: Some(chain.durable()).filter(|head| head.step > 0),
            head: chain.head(),
            source,
        }
    }
}

/// The ledger of one generation, on its rank 0.
#[derive(Debug)]
pub struct Ledger {
    lines: Arc<Mutex<Vec<Line>>>,
    syncs: Sender<Sync>,
    shared: Arc<Shared>,
}

/// A handle with which another thread waits for the ledger.
#[derive(Clone, Debug)]
pub struct Progress {
    syncs: Sender<Sync>,
    shared: Arc<Shared>,
}

/// Why a line is not durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwritten {
    /// The generation has ended.
    #[error("the ledger is closed")]
    Closed,
    /// The volume refuses the line, with the error of the ledger thread.
    #[error("{0}")]
    Volume(String),
    /// A newer generation has written to the volume.
    #[error("generation {0} has written")]
    Fenced(u64),
}

impl Ledger {
    /// Begins the file of a generation with the lines of `chain` that may not be durable.
    ///
    /// # Errors
    /// [`Failure::Internal`] if the operating system refuses the thread. [`Self::error`] returns
    /// errors of the volume.
    pub fn open(
        directory: &Directory,
        opening: Opening,
        identity: &LedgerIdentity,
        chain: &Chain,
    ) -> Result<Self, Failure> {
        let (syncs, inbox) = channel();
        let lines = Arc::<Mutex<Vec<Line>>>::default();
        let shared = Arc::new(Shared::new(chain.durable().step));
        let appender = Appender::new(directory.clone(), opening, identity, chain.clone());
        let (coming, state) = (Arc::clone(&lines), Arc::clone(&shared));
        std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || appender.run(&coming, &inbox, &state))
            .map_err(|error| Failure::Internal(format!("the ledger thread: {error}")))?;
        Ok(Self {
            lines,
            syncs,
            shared,
        })
    }

    /// Appends a line, which becomes durable later.
    pub fn append(&self, line: Line) {
        lock(&self.lines).push(line);
    }

    /// Step of the last durable line.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.shared.state().durable
    }

    /// Why lines cannot be written; `None` while they can.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.shared.state().error.clone()
    }

    /// Time since the volume last answered.
    #[must_use]
    pub fn idle_time(&self) -> Duration {
        self.shared.state().answered_at.elapsed()
    }

    /// A newer generation that has written a ledger or a checkpoint.
    #[must_use]
    pub fn fenced(&self) -> Option<u64> {
        self.shared.state().fenced
    }

    /// Steps that were committed, lost and repeated, if this generation commits a step. `None`
    /// until known.
    #[must_use]
    pub fn repeats(&self) -> Option<Repeats> {
        self.shared.state().repeats
    }

    /// Returns a handle for another thread.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            syncs: self.syncs.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Progress {
    /// Waits until the file exists and the line of a step is durable.
    ///
    /// # Errors
    /// [`Unwritten`] with the reason why the line is not durable.
    pub fn wait_for(&self, step: u64) -> Result<(), Unwritten> {
        let mut state = self.shared.state();
        let first_try = state.num_tries;
        if self.syncs.send(Sync).is_err() {
            return Err(Unwritten::Closed);
        }
        while !state.is_begun || state.durable < step {
            // An attempt that had begun before this call does not cover the later lines.
            if let Some(error) = state
                .error
                .as_ref()
                .filter(|_| state.num_tries > first_try + 1)
            {
                return Err(Unwritten::Volume(error.clone()));
            }
            if let Some(newer) = state.fenced {
                return Err(Unwritten::Fenced(newer));
            }
            state = self
                .shared
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}

/// A thread that panicked has left complete lines, so a poisoned lock is usable.
fn lock(lines: &Mutex<Vec<Line>>) -> MutexGuard<'_, Vec<Line>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
