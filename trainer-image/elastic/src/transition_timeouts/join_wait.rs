//! How long training continues while new ranks have not arrived.

use std::time::{Duration, Instant};

/// Training continues for at least this long without the new ranks. After that the others wait for
/// them at the store, where they can also see a newer generation.
pub(super) const MIN_WAIT: Duration = Duration::from_secs(5);

/// The generation whose new ranks the others wait for, and the start of the wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct JoinWait {
    waiting: Option<(u64, Instant)>,
}

impl JoinWait {
    /// Whether the wait for the new ranks of a generation is over. A rank calls it when a step
    /// begins. The answer takes effect at the end of that step, so the step is part of the wait.
    pub fn is_patience_over(&mut self, generation: u64, step: Duration, now: Instant) -> bool {
        let since = match self.waiting {
            Some((known, since)) if known == generation => since,
            _ => now,
        };
        self.waiting = Some((generation, since));
        now.saturating_duration_since(since) + step >= MIN_WAIT
    }
}
