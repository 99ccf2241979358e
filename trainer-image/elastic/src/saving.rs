//! When a checkpoint is begun, and when it is complete: what the ranks conclude at each step's end.
//!
//! A save is in one of its stages on every rank. No collective of its own is needed: the counts ride
//! in the step's, and every rank draws the same conclusion from them.

use crate::state::{Claim, Origin};

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

/// The save that a rank has in flight when a new generation forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The generation that began it.
    pub writer: u64,
    /// The state that is saved: [`Claim::hash`].
    pub hash: u64,
    /// How many ranks have a part of it that is not known to be durable; 0: all parts are.
    pub num_parts: u32,
}

/// Which save the ranks of a new generation continue: that of their rank 0, which completes it, if all ranks that write a
/// part of it are there and the state from which training continues comes after the one that is saved. It does if rank 0
/// had a state of the same generation in memory: a generation commits one row of steps, and it continued this save when
/// it formed, or began it.
///
/// `carried`: what each rank has in flight; `first`: the claim of rank 0; `agreed`: that of the state that all continue
/// with.
#[must_use]
pub fn continued(carried: &[Option<Carried>], first: &Claim, agreed: &Claim) -> Option<Carried> {
    let save = (*carried.first()?)?;
    let with_it = carried.iter().filter(|of_rank| **of_rank == Some(save));
    let are_live = [first, agreed].map(|claim| claim.origin == Origin::Live);
    let is_before = are_live == [true; 2] && first.generation == agreed.generation;
    (is_before && with_it.count() >= save.num_parts as usize).then_some(save)
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
    fn a_save_is_continued_if_all_its_ranks_are_there_and_training_continues_after_its_state() {
        let live = |generation, step| Claim {
            origin: Origin::Live,
            generation,
            step,
            hash: 0,
        };
        let of = |writer, num_parts| {
            Some(Carried {
                writer,
                hash: 7,
                num_parts,
            })
        };
        let (two, own) = (of(3, 2), live(3, 40));
        let other = two.map(|two| Carried { hash: 8, ..two });
        let loaded = Claim {
            origin: Origin::Loaded,
            ..own
        };
        for (what, carried, first, agreed, expected) in [
            ("both are there", vec![two, two], own, own, two),
            ("a worker joins", vec![two, None, two], own, own, two),
            ("a rank is gone", vec![two, None], own, own, None),
            ("it is another save", vec![two, of(2, 2)], own, own, None),
            ("of another state", vec![two, other], own, own, None),
            ("rank 0 has no part", vec![None, two, two], own, own, None),
            ("all are behind", vec![two, two], own, live(3, 41), two),
            ("another history", vec![two, two], own, live(4, 9), None),
            ("from a checkpoint", vec![two, two], own, loaded, None),
            ("rank 0 lost it", vec![two, two], own.torn(), own, None),
            ("all is durable", vec![of(3, 0), None], own, own, of(3, 0)),
            ("nothing is saved", vec![None, None], own, own, None),
        ] {
            assert_eq!(continued(&carried, &first, &agreed), expected, "{what}");
        }
    }

    #[test]
    fn steps_are_due_at_multiples() {
        let due: Vec<u64> = (0..10).filter(|step| is_due_at(*step, Some(3))).collect();
        assert_eq!(due, [3, 6, 9]);
        assert!(!is_due_at(3, None) && !is_due_at(3, Some(0)));
    }
}
