//! Whether all ranks have the same state where a checkpoint takes a part of it from each: a script that changes the state by
//! what only one rank knows, and a device that computes wrong, make replicas that differ.

use roundhouse_elastic::saving::{Decision, decide};
use roundhouse_member::Failure;
use roundhouse_member::world::StepEnd;

use super::Training;

impl Training {
    /// Whether the ranks begin a checkpoint of the step that has ended, or save it before all leave.
    pub(super) fn begins_save(&self, end: &StepEnd) -> Result<bool, Failure> {
        let size = u64::from(self.member.world()?.size());
        let is_due = end.saving.is_time || self.member.saves_at(self.member.held.mark.step);
        let begins = decide(&end.saving.stages, size, is_due) == Decision::Begin;
        Ok(self.has_checkpoints && (begins || end.agreement.all_leave))
    }

    /// Compares the states of all ranks, by a number for each of their tensors.
    ///
    /// # Errors
    /// [`Failure::State`] on all ranks, with the first tensor that differs and the ranks that have another one than rank 0;
    /// [`Failure::PeerLost`].
    pub(super) fn check_equal(&self) -> Result<(), Failure> {
        let world = self.member.world()?;
        if world.size() == 1 {
            return Ok(());
        }
        let own: Vec<f64> = self.state.digests()?.into_iter().map(f64::from).collect();
        let is_first = world.rank() == 0;
        let told = own
            .iter()
            .map(|digest| if is_first { *digest } else { 0.0 });
        let of_first = world.sum(&told.collect::<Vec<_>>())?;
        let differs = own
            .iter()
            .zip(&of_first)
            .position(|(own, first)| (own - first).abs() > 0.5);
        // Of each rank: 0 if nothing differs, else one more than the place of its first tensor that does.
        let mut places = vec![0.0; world.size() as usize];
        if let Some(place) = places.get_mut(world.rank() as usize) {
            *place = differs.map_or(0.0, |index| index as f64 + 1.0);
        }
        let places = world.sum(&places)?;
        let ranks: Vec<u32> = (0..world.size())
            .zip(&places)
            .filter(|(_, place)| **place > 0.5)
            .map(|(rank, _)| rank)
            .collect();
        let first = places.iter().copied().filter(|place| *place > 0.5);
        let first = first.fold(f64::INFINITY, f64::min);
        if ranks.is_empty() {
            return Ok(());
        }
        Err(self
            .state
            .differs(first - 1.0, ranks, self.member.held.mark.step))
    }
}
