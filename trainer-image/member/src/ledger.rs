//! Writing the ledger: rank 0 of a generation appends to its file, in a thread of its own, so that no
//! step waits for the volume. A generation's file begins with the lines that the disk may lack.
//!
//! The thread takes the lines every [`appender::WRITE_INTERVAL`]. To wake it for each step would cost a short step more
//! than the line is worth: lines that are lost with rank 0 are those that the other ranks still have, and without other
//! ranks training continues from a checkpoint, which waits for its line.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roundhouse_elastic::ledger::{Beginning, Repeats, RunIdentity, Source};
use roundhouse_elastic::{Chain, Line};

use crate::checkpoint::Directory;
use crate::failure::Failure;

mod appender;
mod older;

use appender::{Appender, Sync};

/// What is known of the file.
#[derive(Clone, Debug)]
struct State {
    /// Step of the last line that is durable.
    durable: u64,
    /// Whether the file is there, durably: the fence for older generations.
    is_begun: bool,
    /// Tries to make lines durable, whether they succeeded or not.
    num_tries: u64,
    /// Why the last one did not.
    error: Option<String>,
    /// A newer generation that has written here.
    fenced: Option<u64>,
    /// Steps that were committed, lost and done again, once that is known.
    repeats: Option<Repeats>,
    /// When the volume last answered, well or ill: once a second unless it hangs.
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

    /// Numbers and texts: a thread that panicked left them whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }
}

/// A generation whose ledger begins.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Its number.
    pub generation: u64,
    /// The job's generations are above this.
    pub first_generation: u64,
    /// Where the state was that it begins with.
    pub source: Source,
}

impl Opening {
    /// With the chain that its state has.
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

/// A look at how far the ledger is, for another thread.
#[derive(Clone, Debug)]
pub struct Progress {
    syncs: Sender<Sync>,
    shared: Arc<Shared>,
}

/// Why a line is not durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwritten {
    /// The generation is over.
    #[error("the ledger is closed")]
    Closed,
    /// The volume does not take it, as the thread that writes has said.
    #[error("{0}")]
    Volume(String),
    /// A newer generation has taken over.
    #[error("generation {0} has written")]
    Fenced(u64),
}

impl Ledger {
    /// Begins the file of a generation with the lines of `chain` that may not be durable.
    ///
    /// # Errors
    /// The operating system refused the thread. What the volume refuses is told by
    /// [`Self::error`].
    pub fn open(
        directory: &Directory,
        opening: Opening,
        run: &RunIdentity,
        chain: &Chain,
    ) -> Result<Self, Failure> {
        let (syncs, inbox) = channel();
        let lines = Arc::<Mutex<Vec<Line>>>::default();
        let shared = Arc::new(Shared::new(chain.durable().step));
        let appender = Appender::new(directory.clone(), opening, run, chain.clone());
        let (coming, told) = (Arc::clone(&lines), Arc::clone(&shared));
        std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || appender.run(&coming, &inbox, &told))
            .map_err(|error| Failure::Internal(format!("the ledger thread: {error}")))?;
        Ok(Self {
            lines,
            syncs,
            shared,
        })
    }

    /// Appends a line. It is in the file, and durable, some time later.
    pub fn append(&self, line: Line) {
        lock(&self.lines).push(line);
    }

    /// Step of the last line that is durable.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.shared.state().durable
    }

    /// Why lines cannot be written; `None` while they can.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.shared.state().error.clone()
    }

    /// For how long the volume has not answered at all.
    #[must_use]
    pub fn idle_time(&self) -> Duration {
        self.shared.state().answered_at.elapsed()
    }

    /// A newer generation that has written a ledger or a checkpoint.
    #[must_use]
    pub fn fenced(&self) -> Option<u64> {
        self.shared.state().fenced
    }

    /// Steps that were committed, lost and done again, if this generation commits a step. `None` until that is known.
    #[must_use]
    pub fn repeats(&self) -> Option<Repeats> {
        self.shared.state().repeats
    }

    /// For another thread.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            syncs: self.syncs.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Progress {
    /// Waits until the file is there and the line of a step is durable.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn wait_for(&self, step: u64) -> Result<(), Unwritten> {
        let mut state = self.shared.state();
        let first_try = state.num_tries;
        if self.syncs.send(Sync).is_err() {
            return Err(Unwritten::Closed);
        }
        while !state.is_begun || state.durable < step {
            // One that was under way when this was asked says nothing of what came after it.
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

/// A thread that panicked left whole lines.
fn lock(lines: &Mutex<Vec<Line>>) -> MutexGuard<'_, Vec<Line>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
