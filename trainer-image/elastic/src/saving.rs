//! When a checkpoint save begins and when it is complete, as the ranks decide at the end of each
//! step.
//!
//! On every rank a save is in one of several stages. It needs no collective of its own: the step's
//! collective also sums the stages, and every rank makes the same decision from the sums.

use crate::state::{Claim, Origin};

/// Progress of one rank with the save in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// No save is in flight.
    #[default]
    Idle,
    /// The rank writes its part. Rank 0 is also busy while it completes the checkpoint after
    /// all parts are written.
    Busy,
    /// The rank's part is durable.
    Durable,
    /// The rank could not write its part.
    Failed,
}

/// Number of ranks in each stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Number of ranks that are [`Stage::Busy`].
    pub num_busy: u64,
    /// Number of ranks that are [`Stage::Durable`].
    pub num_durable: u64,
    /// Number of ranks that are [`Stage::Failed`].
    pub num_failed: u64,
}

impl Stages {
    /// Returns the counts that one rank contributes.
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

/// Action of all ranks about saving after this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No rank does anything.
    None,
    /// Each rank copies the state of this step and begins to write its part.
    Begin,
    /// A save is due but is skipped, because another one is still in flight.
    Skip,
    /// All parts are durable: rank 0 completes the checkpoint.
    Complete,
    /// This many ranks could not write their part: rank 0 removes the incomplete checkpoint.
    GiveUp(u64),
}

/// Decides from the stages of all ranks and from whether a save is due after this step.
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
    /// The generation that began the save.
    pub writer: u64,
    /// The state that is saved: [`Claim::hash`].
    pub hash: u64,
    /// Number of ranks whose part may not be durable; 0 if all parts are durable.
    pub num_parts: u32,
}

/// Returns the save that the ranks of a new generation continue: that of their rank 0, which
/// completes it. This requires that all ranks that write a part of it are present, and that the
/// state from which training continues comes after the saved state. The latter is true if rank 0
/// had a state of the same generation in memory: a generation commits one sequence of steps, and it
/// began this save or continued it when it formed.
///
/// `carried`: the save that each rank has in flight; `first`: the claim of rank 0; `agreed`: the
/// claim of the state from which all ranks continue.
#[must_use]
pub fn continued(carried: &[Option<Carried>], first: &Claim, agreed: &Claim) -> Option<Carried> {
    let save = (*carried.first()?)?;
    let with_it = carried.iter().filter(|of_rank| **of_rank == Some(save));
    let are_live = [first, agreed].map(|claim| claim.origin == Origin::Live);
    let is_before = are_live == [true; 2] && first.generation == agreed.generation;
    (is_before && with_it.count() >= save.num_parts as usize).then_some(save)
}

/// Whether a rank that has nothing left to write waits for other ranks that still write.
/// `num_stuck` ranks have made no progress for long enough to be reported. A rank that writes
/// itself is judged by its own bytes only.
#[must_use]
pub fn others_move(own: Stage, stages: &Stages, num_stuck: u64) -> bool {
    own != Stage::Busy && stages.num_busy > 0 && num_stuck == 0
}

/// Whether a save is due after a step because of the step's number alone.
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
                "a save is due, one rank still writes",
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
    fn waiting_rank_makes_progress_unless_a_writer_is_stuck() {
        use Stage::{Busy, Durable, Idle};
        let one_writes = Stages::one(Busy);
        for (what, own, stages, num_stuck, expected) in [
            ("it waits for a writer", Durable, one_writes, 0, true),
            ("rank 0 completes", Idle, one_writes, 0, true),
            ("the writer is stuck", Durable, one_writes, 1, false),
            ("no rank writes", Durable, Stages::one(Durable), 0, false),
            ("it writes itself", Busy, one_writes, 0, false),
        ] {
            assert_eq!(others_move(own, &stages, num_stuck), expected, "{what}");
        }
    }

    #[test]
    fn save_continues_if_its_ranks_and_history_are_present() {
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
            ("both are present", vec![two, two], own, own, two),
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
