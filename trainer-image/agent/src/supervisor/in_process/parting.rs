//! The end of processes that have lost another process of their replica. If the job keeps copies in
//! its pods, each of them first keeps its part of the last state: the parts of all may be a whole
//! state. The agent gives them time for that.

use std::time::Duration;

use roundhouse_contract::Phase;
use tokio::time::Instant;

use super::Worker;
use crate::say::say;

/// Time in which a process notices that another one has ended, after the end of its step. It checks
/// once per second while it waits.
const TIME_TO_NOTICE: Duration = Duration::from_secs(2);
/// Most time of a process to notice the end of another one, and to write its part.
const MOST: Duration = Duration::from_secs(30);

impl Worker<'_> {
    /// Ends the processes that still run because the replica has lost one, or has another life.
    pub(super) fn end_siblings(&mut self) {
        if self.lives.is_some() && self.options.keeps_local_copies() {
            self.parting_since.get_or_insert_with(Instant::now);
        } else {
            self.kill_siblings();
        }
    }

    /// Kills the processes whose time to keep their parts is over.
    pub(super) fn end_parting(&mut self) {
        let Some(since) = self.parting_since else {
            return;
        };
        if self.processes.are_gone() {
            self.parting_since = None;
            return;
        }
        let mut statuses = self.siblings().into_iter();
        let is_writing = statuses.any(|status| status.phase == Phase::Parting);
        if is_over(since.elapsed(), is_writing, self.watch.longest_step()) {
            let left = self.processes.running().count();
            say(&format!(
                "killing {left} processes that have lost another one of their replica"
            ));
            self.parting_since = None;
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

/// Whether processes that were to end this long ago have no more time.
fn is_over(elapsed: Duration, is_writing: bool, longest_step: Duration) -> bool {
    let to_notice = TIME_TO_NOTICE + longest_step;
    elapsed
        >= if is_writing {
            MOST
        } else {
            to_notice.min(MOST)
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_writes_its_part_or_has_long_steps_has_more_time() {
        for (seconds, is_writing, step, expected) in [
            (1, false, 0, false),
            (2, false, 0, true),
            (2, true, 0, false),
            (30, true, 0, true),
            (8, false, 7, false),
            (9, false, 7, true),
            (30, false, 100, true),
        ] {
            let (elapsed, step) = (Duration::from_secs(seconds), Duration::from_secs(step));
            let found = is_over(elapsed, is_writing, step);
            assert_eq!(found, expected, "{seconds} {is_writing}");
        }
    }
}
