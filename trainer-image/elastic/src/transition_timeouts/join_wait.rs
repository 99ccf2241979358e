//! How long training continues without newcomers that have not arrived.

use std::time::{Duration, Instant};

/// For how long training continues without newcomers that have not arrived. After that the others wait for them at
/// the store, where they hear of a newer generation, too.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The generation that newcomers are waited for, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub struct JoinWait {
    waiting: Option<(u64, Instant)>,
}

impl JoinWait {
    /// Whether the wait for the newcomers of a generation is long enough, as asked when a step begins: what is
    /// answered counts at that step's end, so the step is part of the wait.
    pub fn is_patience_over(&mut self, generation: u64, step: Duration, now: Instant) -> bool {
        let since = match self.waiting {
            Some((known, since)) if known == generation => since,
            _ => now,
        };
        self.waiting = Some((generation, since));
        now.saturating_duration_since(since) + step >= PATIENCE
    }
}
