//! Whether a process of the built-in trainer that died is started anew while its siblings live on. Pure.
//!
//! A worker of several processes holds as many copies of the state. When one process dies its siblings strand, as
//! after any lost peer, and keep their copies. The agent starts the dead process anew in the same container; it
//! waits in the lobby, and the next generation sends it the state. No container restarts, so the worker keeps its
//! incarnation.
//!
//! The worker ends as a whole where a new process cannot help: for exit codes that running it again would repeat or
//! that ask for another node, when no sibling holds the state, and when processes keep dying without a new step.

use std::time::Duration;

use roundhouse_contract::{ExitCode, Phase, RankStatus};

use crate::verdict::{CAUSE_WINDOW, End};

/// Restarts without a new step after which the next death ends the worker.
pub const MAX_WITHOUT_PROGRESS: u32 = 3;

/// Restarts of a worker's processes so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct InPlace {
    total: u32,
    /// Since a step was last committed.
    in_a_row: u32,
    /// Furthest step at a death.
    step: u64,
}

/// Why a death ends the worker, or that it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Start the process anew after a pause.
    Restart,
    /// Its exit code is one that a restart in place does not mend.
    EndsWorker,
    /// No sibling holds the state.
    NobodyHoldsState,
    /// Processes died too often without a new step.
    TooOften,
}

impl InPlace {
    /// What a death calls for. `siblings`: what the processes that run said last; `step`: the furthest step that any
    /// process of the worker has told.
    #[must_use]
    pub fn choose(&self, end: End, siblings: &[RankStatus], step: u64) -> Choice {
        if !is_temporary(end) {
            Choice::EndsWorker
        } else if !siblings.iter().any(holds_state) {
            Choice::NobodyHoldsState
        } else if self.counted(step) >= MAX_WITHOUT_PROGRESS {
            Choice::TooOften
        } else {
            Choice::Restart
        }
    }

    /// How long to wait before the restart: others that died of the same cause are seen by then, and a process that
    /// dies again and again does not keep the machine busy. Doubles with each restart without a new step.
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

    /// Restarts since the container started.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// Restarts without a new step.
    #[must_use]
    pub const fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    const fn counted(&self, step: u64) -> u32 {
        if step > self.step { 0 } else { self.in_a_row }
    }
}

/// Whether another process may do better in the same place.
fn is_temporary(end: End) -> bool {
    match ExitCode::from_code(end.code()) {
        None | Some(ExitCode::Internal | ExitCode::PeerLost) => true,
        Some(
            ExitCode::Done
            | ExitCode::ConfigInvalid
            | ExitCode::DataInvalid
            // All ranks end with it, so that the job's condition names the volume.
            | ExitCode::VolumeFailed
            | ExitCode::Stalled
            | ExitCode::HardwareFault
            | ExitCode::Left,
        ) => false,
    }
}

/// Whether a process has been in a generation, and is not about to leave with its copy.
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
    fn a_process_that_dies_beside_a_sibling_with_the_state_is_started_anew() {
        let siblings = [sibling(Phase::Stranded, 3)];
        for end in [KILLED, End::Signaled(6), End::Exited(1), End::Exited(70)] {
            let choice = InPlace::default().choose(end, &siblings, 7);
            assert_eq!(choice, Choice::Restart, "{end:?}");
        }
    }

    #[test]
    fn codes_that_a_restart_does_not_mend_end_the_worker() {
        let siblings = [sibling(Phase::Training, 3)];
        for code in [0, 64, 65, 74, 77, 143] {
            let choice = InPlace::default().choose(End::Exited(code), &siblings, 7);
            assert_eq!(choice, Choice::EndsWorker, "{code}");
        }
        let terminated = InPlace::default().choose(End::Signaled(15), &siblings, 7);
        assert_eq!(terminated, Choice::EndsWorker);
    }

    #[test]
    fn a_worker_in_which_no_process_holds_the_state_ends() {
        let started_anew = sibling(Phase::Lobby, 0);
        let done = sibling(Phase::Done, 3);
        for siblings in [&[][..], &[started_anew], &[done]] {
            let choice = InPlace::default().choose(KILLED, siblings, 7);
            assert_eq!(choice, Choice::NobodyHoldsState, "{siblings:?}");
        }
    }

    #[test]
    fn restarts_without_a_new_step_are_limited_and_a_step_renews_them() {
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
