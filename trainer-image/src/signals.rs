//! SIGTERM and SIGINT: leave at the step boundary at which the others can do without this process; if
//! that does not come soon, leave anyway.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use roundhouse_contract::ExitCode;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// How long a process goes on once asked to leave. It is below Kubernetes' default grace of 30 s and
/// far above the second in which the operator issues a generation without this worker.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much longer when it saves the state before it leaves. Together below the 25 s after which the
/// agent ends it.
const SAVE_PATIENCE: Duration = Duration::from_secs(15);

/// Whether somebody asked this process to leave.
#[derive(Clone, Debug, Default)]
pub struct LeaveRequest(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    is_made: AtomicBool,
    holds_on: AtomicBool,
}

impl LeaveRequest {
    /// Catches the signals from now on. `last_words` runs before the process ends because its step boundary
    /// did not come in time or, if it is told so, the save after it did not end.
    ///
    /// # Errors
    /// The operating system refused the handler or the thread.
    pub fn listen(last_words: impl FnOnce(bool) + Send + 'static) -> Result<Self, Failure> {
        let refused = |error: std::io::Error| Failure::Internal(format!("signals: {error}"));
        let request = Self::default();
        let flags = Arc::clone(&request.0);
        let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(refused)?;
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                if signals.forever().next().is_some() {
                    flags.is_made.store(true, Ordering::Relaxed);
                    std::thread::sleep(PATIENCE);
                    let holds_on = flags.holds_on.load(Ordering::Relaxed);
                    if holds_on {
                        std::thread::sleep(SAVE_PATIENCE);
                    }
                    last_words(holds_on);
                    // Not the ordinary exit: its destructors would wait for the blocked thread.
                    signal_hook::low_level::exit(ExitCode::Left.code());
                }
            })
            .map_err(refused)?;
        Ok(request)
    }

    /// The step boundary has come, and the state is being saved: it may take a little longer.
    pub fn hold_on(&self) {
        self.0.holds_on.store(true, Ordering::Relaxed);
    }

    /// Whether a signal has come.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.0.is_made.load(Ordering::Relaxed)
    }
}
