//! Handles SIGTERM and SIGINT: the process leaves at the step boundary at which the others can
//! continue without it. If that does not come soon, it saves its state alone and leaves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use roundhouse_contract::ExitCode;
use roundhouse_contract::environment::grace::LeaveBudget;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// Fraction of the time until the step boundary during which a request does not interrupt an
/// evaluation. Most of that time is reserved for the boundary and a save.
const UNTIL_PRESSING_SHARE: u32 = 5;

/// Whether a signal has come to this process.
static IS_ASKED: AtomicBool = AtomicBool::new(false);

/// Whether this process was asked to leave.
#[must_use]
pub fn is_asked() -> bool {
    IS_ASKED.load(Ordering::Relaxed)
}

/// Asks this process to leave, as the signal does. The processes of a replica leave together,
/// because none of them can save its state without the others.
pub fn ask() {
    // The signal exists, so the operating system does not refuse it.
    let _ = signal_hook::low_level::raise(SIGTERM);
}

/// A request to leave, if there is one.
#[derive(Clone, Debug, Default)]
pub struct LeaveRequest(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    until_pressing: Duration,
    made_at: OnceLock<Instant>,
    holds_on: AtomicBool,
    is_overdue: AtomicBool,
}

impl LeaveRequest {
    /// Catches the signals from now on. After a signal the process continues for at most `budget`.
    /// `last_words` runs before the process ends because its step boundary did not come in time or,
    /// with the argument true, because the save after it did not end.
    ///
    /// # Errors
    /// [`Failure::Internal`] if the operating system refuses the handler or the thread.
    pub fn listen(
        budget: LeaveBudget,
        last_words: impl FnOnce(bool) + Send + 'static,
    ) -> Result<Self, Failure> {
        let refused = |error: std::io::Error| Failure::Internal(format!("signals: {error}"));
        let request = Self(Arc::new(Flags {
            until_pressing: budget.until_boundary / UNTIL_PRESSING_SHARE,
            ..Flags::default()
        }));
        let flags = Arc::clone(&request.0);
        let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(refused)?;
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                if signals.forever().next().is_some() {
                    IS_ASKED.store(true, Ordering::Relaxed);
                    flags.made_at.get_or_init(Instant::now);
                    std::thread::sleep(budget.until_boundary);
                    let is_overdue = !flags.holds_on.load(Ordering::Relaxed);
                    flags.is_overdue.store(is_overdue, Ordering::Relaxed);
                    std::thread::sleep(budget.for_saving);
                    last_words(flags.holds_on.load(Ordering::Relaxed));
                    // Not the ordinary exit: its destructors would wait for the blocked thread.
                    signal_hook::low_level::exit(ExitCode::Left.code());
                }
            })
            .map_err(refused)?;
        Ok(request)
    }

    /// Extends the time, because the step boundary has come and the state is being saved.
    pub fn hold_on(&self) {
        self.0.holds_on.store(true, Ordering::Relaxed);
    }

    /// Whether the step boundary has not come in time. Then the process stops waiting for its peers
    /// and saves its state alone in the time that is left.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.0.is_overdue.load(Ordering::Relaxed)
    }

    /// Whether a signal has come.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.0.made_at.get().is_some()
    }

    /// Whether a signal came so long ago that long work must be interrupted.
    #[must_use]
    pub fn is_pressing(&self) -> bool {
        let made_at = self.0.made_at.get();
        made_at.is_some_and(|made_at| made_at.elapsed() >= self.0.until_pressing)
    }
}
