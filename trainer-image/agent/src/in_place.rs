//! Decides whether the agent restarts a process of the built-in trainer that died while its
//! siblings continue.
//!
//! A worker of several processes holds several copies of the state. When one process dies, its
//! siblings lose a peer and keep their copies. The agent restarts the dead process in the same
//! container. The process waits in the lobby, and the next generation sends it the state. No
//! container restarts, so the worker keeps its incarnation.
//!
//! The processes of a sharded worker hold one copy of the state together. When one dies, all of
//! them restart, and another worker sends them the state.
//!
//! The whole worker ends if a new process cannot help: for exit codes that would repeat or that
//! require another node, if no sibling holds the state, and if processes keep dying without a new
//! step.

use std::time::Duration;

use roundhouse_contract::{ExitCode, Phase, RankStatus};

use crate::verdict::{CAUSE_WINDOW, End};

/// Number of restarts without a new step after which another death ends the worker.
pub const MAX_WITHOUT_PROGRESS: u32 = 3;

/// Restarts of a worker's processes so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct InPlace {
    total: u32,
    /// Number of restarts since the last committed step.
    in_a_row: u32,
    /// Highest step at a death.
    step: u64,
}

/// The decision about a dead process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Restart the process after a pause.
    Restart,
    /// End the worker: a restart in place does not help for this exit code.
    EndsWorker,
    /// End the worker: no sibling holds the state.
    NoCopyLeft,
    /// End the worker: its sharded processes have not trained yet, or one has completed.
    NotTraining,
    /// End the worker: processes died too often without a new step.
    TooOften,
}

impl InPlace {
    /// Decides about a dead process that had a copy of the state. `siblings`: last statuses of the
    /// running processes; `step`: highest step that any process of the worker has reported.
    #[must_use]
    pub fn choose(&self, end: End, siblings: &[RankStatus], step: u64) -> Choice {
        if !is_temporary(end) {
            Choice::EndsWorker
        } else if !siblings.iter().any(holds_state) {
            Choice::NoCopyLeft
        } else if self.counted(step) >= MAX_WITHOUT_PROGRESS {
            Choice::TooOften
        } else {
            Choice::Restart
        }
    }

    /// Decides about a dead process of a sharded worker, whose siblings end with it. `siblings`:
    /// last statuses of those that still ran; `has_trained`: whether any process of the worker has
    /// been in a generation; `step`: highest step that any of them has reported.
    #[must_use]
    pub fn choose_all(
        &self,
        end: End,
        siblings: &[RankStatus],
        has_trained: bool,
        step: u64,
    ) -> Choice {
        let is_complete = siblings.iter().any(|status| status.phase == Phase::Done);
        if !is_temporary(end) {
            Choice::EndsWorker
        } else if is_complete || !has_trained {
            Choice::NotTraining
        } else if self.counted(step) >= MAX_WITHOUT_PROGRESS {
            Choice::TooOften
        } else {
            Choice::Restart
        }
    }

    /// Time to wait before the restart. It lets other processes that died of the same cause be
    /// seen, and a process that dies repeatedly does not keep the machine busy. It doubles with
    /// each restart without a new step.
    #[must_use]
    pub fn pause(&self, step: u64) -> Duration {
        CAUSE_WINDOW * 2_u32.saturating_pow(self.counted(step))
    }

    /// Counts one restart, of one process or of several that died together.
    pub fn count(&mut self, step: u64) {
        self.in_a_row = self.counted(step) + 1;
        self.step = self.step.max(step);
        self.total += 1;
    }

    /// Number of restarts since the container started.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// Number of restarts without a new step.
    #[must_use]
    pub const fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    const fn counted(&self, step: u64) -> u32 {
        if step > self.step { 0 } else { self.in_a_row }
    }
}

/// Whether another process may succeed in the same place.
fn is_temporary(end: End) -> bool {
    match ExitCode::from_code(end.code()) {
        None | Some(ExitCode::Internal | ExitCode::PeerLost) => true,
        Some(
            ExitCode::Done
            | ExitCode::ConfigInvalid
            | ExitCode::DataInvalid
            // All ranks end with this code, so that the job's condition names the volume.
            | ExitCode::VolumeFailed
            | ExitCode::Stalled
            | ExitCode::HardwareFault
            | ExitCode::Left,
        ) => false,
    }
}

/// Whether a process has been in a generation and is not about to leave with its copy.
fn holds_state(status: &RankStatus) -> bool {
    status.generation > 0 && status.phase != Phase::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: End = End::Signaled(9);

    fn sibling(phase: Phase, generation: u64) -> RankStatus {
        RankStatus {
            phase,
            rank: None,
            generation,
            step: 0,
            forming: 0,
            volume_moves: 0,
            patience_seconds: 0,
            progress: None,
        }
    }

    #[test]
    fn process_with_a_live_sibling_is_restarted() {
        let siblings = [sibling(Phase::Stranded, 3)];
        for end in [KILLED, End::Signaled(6), End::Exited(1), End::Exited(70)] {
            let choice = InPlace::default().choose(end, &siblings, 7);
            assert_eq!(choice, Choice::Restart, "{end:?}");
        }
    }

    #[test]
    fn permanent_exit_codes_end_the_worker() {
        let siblings = [sibling(Phase::Training, 3)];
        for code in [0, 64, 65, 74, 77, 143] {
            let choice = InPlace::default().choose(End::Exited(code), &siblings, 7);
            assert_eq!(choice, Choice::EndsWorker, "{code}");
        }
        let terminated = InPlace::default().choose(End::Signaled(15), &siblings, 7);
        assert_eq!(terminated, Choice::EndsWorker);
    }

    #[test]
    fn worker_without_a_copy_of_the_state_ends() {
        let restarted = sibling(Phase::Lobby, 0);
        let done = sibling(Phase::Done, 3);
        for siblings in [&[][..], &[restarted], &[done]] {
            let choice = InPlace::default().choose(KILLED, siblings, 7);
            assert_eq!(choice, Choice::NoCopyLeft, "{siblings:?}");
        }
    }

    #[test]
    fn sharded_worker_restarts_without_a_copy_of_the_state() {
        let mut in_place = InPlace::default();
        let new = sibling(Phase::Lobby, 0);
        for end in [KILLED, End::Exited(1), End::Exited(75)] {
            let choice = in_place.choose_all(end, std::slice::from_ref(&new), true, 7);
            assert_eq!(choice, Choice::Restart, "{end:?}");
        }
        for _ in 0..MAX_WITHOUT_PROGRESS {
            in_place.count(7);
        }
        let choice = in_place.choose_all(KILLED, &[new], true, 7);
        assert_eq!(choice, Choice::TooOften);
    }

    #[test]
    fn sharded_worker_that_does_not_train_ends() {
        let running = sibling(Phase::Training, 3);
        let done = sibling(Phase::Done, 3);
        for (end, siblings, has_trained, expected) in [
            (
                End::Exited(65),
                std::slice::from_ref(&running),
                true,
                Choice::EndsWorker,
            ),
            (
                KILLED,
                std::slice::from_ref(&running),
                false,
                Choice::NotTraining,
            ),
            (KILLED, &[running.clone(), done], true, Choice::NotTraining),
        ] {
            let choice = InPlace::default().choose_all(end, siblings, has_trained, 7);
            assert_eq!(choice, expected, "{end:?} {siblings:?} {has_trained}");
        }
    }

    #[test]
    fn restarts_are_limited_until_the_next_step() {
        let siblings = [sibling(Phase::Stranded, 3)];
        let mut in_place = InPlace::default();
        for pause in [500, 1_000, 2_000] {
            assert_eq!(in_place.choose(KILLED, &siblings, 7), Choice::Restart);
            assert_eq!(in_place.pause(7), Duration::from_millis(pause));
            in_place.count(7);
        }
        assert_eq!(in_place.choose(KILLED, &siblings, 7), Choice::TooOften);
        assert_eq!(in_place.choose(KILLED, &siblings, 8), Choice::Restart);
        assert_eq!(in_place.pause(8), CAUSE_WINDOW);
        in_place.count(8);
        assert_eq!((in_place.in_a_row(), in_place.total()), (1, 4));
    }
}
