//! When a checkpoint is begun, and when it is complete: what the ranks conclude at each step's end.
//!
//! A save is in one of its stages on every rank. No collective of its own is needed: the counts ride
//! in the step's, and every rank draws the same conclusion from them.

/// How far a rank is with the save in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// There is none.
    #[default]
    Idle,
    /// It writes its part; or, on rank 0 after all parts are written, it completes the whole.
    Busy,
    /// Its part is durable.
    Durable,
    /// Its part could not be written.
    Failed,
}

/// All ranks' stages, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Ranks that are [`Stage::Busy`].
    pub num_busy: u64,
    /// Ranks that are [`Stage::Durable`].
    pub num_durable: u64,
    /// Ranks that are [`Stage::Failed`].
    pub num_failed: u64,
}

impl Stages {
    /// What one rank adds to the counts.
    #[must_use]
    pub fn one(stage: Stage) -> Self {
        let count = |counted| u64::from(stage == counted);
        Self {
            num_busy: count(Stage::Busy),
            num_durable: count(Stage::Durable),
            num_failed: count(Stage::Failed),
        }
    }
}

/// What all ranks do about saving after this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    None,
    /// Each copies the state of this step and begins to write its part.
    Begin,
    /// A save is due, but one is in flight still: this one is left out.
    Skip,
    /// All parts are durable: rank 0 completes the checkpoint.
    Complete,
    /// So many ranks could not write their part: rank 0 removes the rest.
    GiveUp(u64),
}

/// Concludes from all ranks' stages, and from whether a save is due after this step.
#[must_use]
pub const fn decide(stages: &Stages, world_size: u64, is_due: bool) -> Decision {
    let Stages {
        num_busy,
        num_durable,
        num_failed,
    } = *stages;
    let num_written = num_durable + num_failed;
    if num_written >= world_size && num_failed > 0 {
        Decision::GiveUp(num_failed)
    } else if num_written >= world_size {
        Decision::Complete
    } else if !is_due {
        Decision::None
    } else if num_busy + num_written > 0 {
        Decision::Skip
    } else {
        Decision::Begin
    }
}

/// Whether a rank that has nothing left to write waits for others that write: `num_stuck` of the ranks have not
/// moved for as long as is worth telling. Then it is no more at a standstill than they are. Who writes itself is
/// judged by its own bytes alone.
#[must_use]
pub fn others_move(own: Stage, stages: &Stages, num_stuck: u64) -> bool {
    own != Stage::Busy && stages.num_busy > 0 && num_stuck == 0
}

/// Whether a save is due after a step, of those that are a function of the step alone.
#[must_use]
pub const fn is_due_at(step: u64, every_steps: Option<u64>) -> bool {
    match every_steps {
        Some(every) if every > 0 => step > 0 && step.is_multiple_of(every),
        Some(_) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(stages: &[Stage], is_due: bool) -> Decision {
        let mut sum = Stages::default();
        for one in stages.iter().map(|stage| Stages::one(*stage)) {
            sum.num_busy += one.num_busy;
            sum.num_durable += one.num_durable;
            sum.num_failed += one.num_failed;
        }
        decide(&sum, stages.len() as u64, is_due)
    }

    #[test]
    fn every_case_has_its_decision() {
        use Stage::{Busy, Durable, Failed, Idle};
        for (what, stages, is_due, expected) in [
            ("nothing is due", [Idle, Idle, Idle], false, Decision::None),
            ("a save is due", [Idle, Idle, Idle], true, Decision::Begin),
            (
                "one rank writes",
                [Durable, Busy, Durable],
                false,
                Decision::None,
            ),
            (
                "one rank writes still",
                [Durable, Busy, Durable],
                true,
                Decision::Skip,
            ),
            ("rank 0 completes", [Busy, Idle, Idle], true, Decision::Skip),
            (
                "all parts are durable",
                [Durable; 3],
                true,
                Decision::Complete,
            ),
            (
                "one has failed, one writes",
                [Failed, Busy, Durable],
                false,
                Decision::None,
            ),
            (
                "one has failed",
                [Durable, Failed, Durable],
                true,
                Decision::GiveUp(1),
            ),
            ("all have failed", [Failed; 3], false, Decision::GiveUp(3)),
        ] {
            assert_eq!(decision(&stages, is_due), expected, "{what}");
        }
    }

    #[test]
    fn a_rank_that_waits_for_others_moves_as_long_as_none_of_them_is_stuck() {
        use Stage::{Busy, Durable, Idle};
        let one_writes = Stages::one(Busy);
        for (what, own, stages, num_stuck, expected) in [
            ("its part is written", Durable, one_writes, 0, true),
            ("rank 0 completes", Idle, one_writes, 0, true),
            ("the other is stuck", Durable, one_writes, 1, false),
            ("nobody writes", Durable, Stages::one(Durable), 0, false),
            ("it writes itself", Busy, one_writes, 0, false),
        ] {
            assert_eq!(others_move(own, &stages, num_stuck), expected, "{what}");
        }
    }

    #[test]
    fn steps_are_due_at_multiples() {
        let due: Vec<u64> = (0..10).filter(|step| is_due_at(*step, Some(3))).collect();
        assert_eq!(due, [3, 6, 9]);
        assert!(!is_due_at(3, None) && !is_due_at(3, Some(0)));
    }
}
