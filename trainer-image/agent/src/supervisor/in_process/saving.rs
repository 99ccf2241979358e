//! The end of processes whose replica has lost another one. If the job keeps copies in its pods,
//! each of them first saves its part of the last state, since the parts of all may be a whole
//! state. The agent gives them time for that, and a file ends their waits for processes that may
//! never answer.

use std::time::Duration;

use roundhouse_contract::Phase;
use tokio::time::Instant;

use super::Worker;
use crate::say::say;

/// Time for a process to notice, after its step, that another one has ended.
const TIME_TO_NOTICE: Duration = Duration::from_secs(2);
/// Longest time from the loss to the end of a process, including the write of its part.
const MAX_TIME: Duration = Duration::from_secs(30);

impl Worker<'_> {
    /// Ends the processes that still run because the replica has lost one, or has another life.
    pub(super) fn end_siblings(&mut self) {
        let has_next_life = self.lives.is_some() && self.ended.is_empty();
        if has_next_life && self.options.keeps_local_copies() {
            if let Some(replica) = &self.replica {
                replica.announce_end();
            }
            self.saving_since.get_or_insert_with(Instant::now);
        } else {
            self.kill_siblings();
        }
    }

    /// Kills the processes whose time to save their parts is over.
    pub(super) fn end_saving(&mut self) {
        let Some(since) = self.saving_since else {
            return;
        };
        if self.processes.are_gone() {
            self.saving_since = None;
            return;
        }
        let mut statuses = self.siblings().into_iter();
        let is_saving = statuses.any(|status| status.phase == Phase::SavingPart);
        if is_time_over(since.elapsed(), is_saving, self.watch.longest_step()) {
            let left = self.processes.running().count();
            say(&format!(
                "killing {left} processes: their replica has lost another one"
            ));
            self.saving_since = None;
            self.kill_siblings();
        }
    }

    fn kill_siblings(&mut self) {
        if let Some(replica) = &mut self.replica {
            replica.kills(self.processes.running().map(|(_, local)| local));
        }
        self.processes.kill_all();
    }
}

/// Whether processes that should have ended this long ago have no more time.
fn is_time_over(elapsed: Duration, is_saving: bool, longest_step: Duration) -> bool {
    let limit = if is_saving {
        MAX_TIME
    } else {
        MAX_TIME.min(TIME_TO_NOTICE + longest_step)
    };
    elapsed >= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_saves_its_part_or_has_long_steps_has_more_time() {
        for (seconds, is_saving, step, expected) in [
            (1, false, 0, false),
            (2, false, 0, true),
            (2, true, 0, false),
            (30, true, 0, true),
            (8, false, 7, false),
            (9, false, 7, true),
            (30, false, 100, true),
        ] {
            let (elapsed, step) = (Duration::from_secs(seconds), Duration::from_secs(step));
            let found = is_time_over(elapsed, is_saving, step);
            assert_eq!(found, expected, "{seconds} {is_saving}");
        }
    }
}
