//! A rank's report to a new generation as numbers. Each rank has its own slots, to which the other
//! ranks add 0.

use roundhouse_elastic::saving::Carried;
use roundhouse_elastic::state::{Names, Volume};
use roundhouse_elastic::{CheckpointId, Claim, Origin};

use super::RankReport;
use crate::world::since_commit::SinceCommit;

/// The slots of a rank, in order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slot {
    Origin,
    Generation,
    Step,
    ChainBytes,
    FirstGeneration,
    Evaluated,
    FirstStepMillis,
    LongestStepMillis,
    EvaluationCounts,
    Hash,
    Volume,
    CheckpointGeneration,
    CheckpointStep,
    WrittenGeneration,
    IsSuperseded,
    IsLive,
    UnsavedMillis,
    IsOwed,
    IsCutShort,
    SaveWriter,
    SaveHash,
    SaveNumParts,
    StateBytes,
}

/// Number of slots of a rank.
pub(crate) const NUM_SLOTS: usize = Slot::StateBytes as usize + 1;
/// Upper bound of a time: sums are exact up to it.
const LONGEST_MILLIS: u64 = 1 << 52;

impl RankReport {
    /// The numbers of a rank among `world_size` ranks, in the order of the slots.
    pub(super) fn to_numbers(self, world_size: u32) -> [u64; NUM_SLOTS] {
        let Self {
            claim:
                Claim {
                    origin,
                    generation,
                    step,
                    hash,
                },
            chain_bytes,
            first_generation,
            since_commit:
                SinceCommit {
                    evaluated,
                    evaluation_counts,
                    is_cut_short,
                },
            estimate,
            is_live,
            debt: (unsaved, is_owed),
            carried,
            volume,
            is_superseded,
            state_bytes,
        } = self;
        let unsaved = u64::try_from(unsaved.as_millis()).unwrap_or(u64::MAX);
        let [answer, checkpoint_generation, checkpoint_step, written] = to_numbers(&volume);
        let [first_step, longest_step] = estimate.scaled_to(world_size).to_millis();
        let values: [(Slot, u64); NUM_SLOTS] = [
            (Slot::Origin, origin.code()),
            (Slot::Generation, generation),
            (Slot::Step, step),
            (Slot::ChainBytes, chain_bytes as u64),
            (Slot::FirstGeneration, first_generation),
            (Slot::Evaluated, evaluated),
            (Slot::FirstStepMillis, first_step),
            (Slot::LongestStepMillis, longest_step),
            (Slot::EvaluationCounts, u64::from(evaluation_counts)),
            (Slot::Hash, hash),
            (Slot::Volume, answer),
            (Slot::CheckpointGeneration, checkpoint_generation),
            (Slot::CheckpointStep, checkpoint_step),
            (Slot::WrittenGeneration, written),
            (Slot::IsSuperseded, u64::from(is_superseded)),
            (Slot::IsLive, u64::from(is_live)),
            (Slot::UnsavedMillis, unsaved.min(LONGEST_MILLIS)),
            (Slot::IsOwed, u64::from(is_owed)),
            (Slot::IsCutShort, u64::from(is_cut_short)),
            (Slot::SaveWriter, carried.map_or(0, |save| save.writer)),
            (Slot::SaveHash, carried.map_or(0, |save| save.hash)),
            (
                Slot::SaveNumParts,
                carried.map_or(0, |save| u64::from(save.num_parts)),
            ),
            (Slot::StateBytes, state_bytes),
        ];
        let mut numbers = [0; NUM_SLOTS];
        for (slot, value) in values {
            numbers[slot as usize] = value;
        }
        numbers
    }
}

/// The numbers of all ranks, rank after rank.
pub(super) struct Reports(Vec<u64>);

impl Reports {
    pub(super) const fn new(sums: Vec<u64>) -> Self {
        Self(sums)
    }

    /// Returns one number of one rank.
    pub(super) fn get(&self, rank: usize, slot: Slot) -> u64 {
        self.0[NUM_SLOTS * rank + slot as usize]
    }

    /// Returns one number of each rank.
    pub(super) fn each(&self, slot: Slot) -> impl Iterator<Item = u64> {
        self.ranks().map(move |rank| self.get(rank, slot))
    }

    /// Returns the highest value of a slot.
    pub(super) fn highest(&self, slot: Slot) -> u64 {
        self.each(slot).max().unwrap_or_default()
    }

    /// Returns whether each rank has a number above 0.
    pub(super) fn flags(&self, slot: Slot) -> Vec<bool> {
        self.each(slot).map(|number| number > 0).collect()
    }

    pub(super) fn claims(&self) -> Vec<Claim> {
        let claim = |rank| Claim {
            origin: Origin::from_code(self.get(rank, Slot::Origin)),
            generation: self.get(rank, Slot::Generation),
            step: self.get(rank, Slot::Step),
            hash: self.get(rank, Slot::Hash),
        };
        self.ranks().map(claim).collect()
    }

    /// Returns the saves in flight. No generation has the number 0.
    pub(super) fn carried(&self) -> Vec<Option<Carried>> {
        let carried = |rank| {
            let writer = self.get(rank, Slot::SaveWriter);
            let num_parts = self.get(rank, Slot::SaveNumParts);
            (writer > 0).then(|| Carried {
                writer,
                hash: self.get(rank, Slot::SaveHash),
                num_parts: u32::try_from(num_parts).unwrap_or(u32::MAX),
            })
        };
        self.ranks().map(carried).collect()
    }

    /// Returns rank 0's knowledge of the volume, which only that rank lists.
    pub(super) fn volume(&self) -> Volume {
        from_numbers(
            [
                Slot::Volume,
                Slot::CheckpointGeneration,
                Slot::CheckpointStep,
                Slot::WrittenGeneration,
            ]
            .map(|slot| self.get(0, slot)),
        )
    }

    fn ranks(&self) -> std::ops::Range<usize> {
        0..self.0.len() / NUM_SLOTS
    }
}

const fn to_numbers(volume: &Volume) -> [u64; 4] {
    match volume {
        Volume::Absent => [0; 4],
        Volume::Silent => [1, 0, 0, 0],
        Volume::Names(Names {
            checkpoint: None,
            generation,
        }) => [2, 0, 0, *generation],
        Volume::Names(Names {
            checkpoint: Some(id),
            generation,
        }) => [3, id.generation, id.step, *generation],
    }
}

/// The inverse of [`to_numbers`].
fn from_numbers([code, newest, step, generation]: [u64; 4]) -> Volume {
    let id = CheckpointId {
        generation: newest,
        step,
    };
    match code {
        0 => Volume::Absent,
        1 => Volume::Silent,
        _ => Volume::Names(Names {
            checkpoint: (code == 3).then_some(id),
            generation,
        }),
    }
}
