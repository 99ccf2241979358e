//! A world that is to grow trains on until those who join stand at the door of the next generation: a
//! kubelet may tell the newcomer seconds after the others, and nobody should wait for that.

use std::time::{Duration, Instant};

use super::{Peers, Trainer};

/// Then the others go and wait for the newcomers at the store, where a newer generation is heard of, too.
/// Shorter than the patience with those who never hear of a generation.
const PATIENCE: Duration = Duration::from_secs(5);

/// The generation that newcomers are waited for, and since when.
#[derive(Debug, Default)]
pub(super) struct Door {
    waiting: Option<(u64, Instant)>,
}

impl Door {
    /// Whether the wait for the newcomers of a generation has been long enough.
    fn is_patience_over(&mut self, generation: u64, now: Instant) -> bool {
        let since = match self.waiting {
            Some((known, since)) if known == generation => since,
            _ => now,
        };
        self.waiting = Some((generation, since));
        now.saturating_duration_since(since) >= PATIENCE
    }
}

impl Trainer<'_> {
    /// The newest generation this process is ready for, as the others are told at the end of a step. All
    /// change to it once the last says so; here its rank 0, which has the store, speaks for the newcomers.
    pub(super) fn newest_for_all(&mut self) -> u64 {
        let newest = self.machine.newest_generation();
        let (Some(next), Some(peers), Some(replicas)) =
            (self.machine.pending(), &self.peers, &self.replicas)
        else {
            return newest;
        };
        // At least so many are new; more, if somebody leaves.
        let num_new = next.world_size.saturating_sub(replicas.world().size());
        if next.rank != 0 || num_new == 0 || num_arrived(peers, next.generation) >= num_new {
            return newest;
        }
        let current = self.machine.current_generation().unwrap_or(newest);
        if self.door.is_patience_over(next.generation, Instant::now()) {
            newest
        } else {
            current
        }
    }
}

/// A store that cannot be asked keeps nobody.
fn num_arrived(peers: &Peers, generation: u64) -> u32 {
    peers.rendezvous.num_arrived(generation).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_generation_has_a_patience_of_its_own() {
        let (mut door, start) = (Door::default(), Instant::now());
        assert!(!door.is_patience_over(3, start));
        assert!(!door.is_patience_over(3, start + PATIENCE / 2));
        assert!(door.is_patience_over(3, start + PATIENCE));
        assert!(!door.is_patience_over(4, start + PATIENCE));
        assert!(door.is_patience_over(4, start + 2 * PATIENCE));
    }
}
