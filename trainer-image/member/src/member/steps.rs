//! Where a step begins and ends, as a member of a generation sees it.

use super::Member;
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::world::{RankVote, Saving, StepOutcome};

impl<R: Rendezvous> Member<'_, R> {
    /// A step begins: what this rank will bring to its end, as far as it is known now.
    ///
    /// # Errors
    /// [`Failure::Fenced`].
    pub fn begin_step(&mut self) -> Result<RankVote, Failure> {
        if let Some(peers) = &self.peers {
            peers.interrupter.step_begins();
            let longest = peers.interrupter.longest_step();
            peers.rendezvous.publish_longest_step(longest);
        }
        let saving = self.saving()?;
        Ok(RankVote {
            finite: true,
            leaving: self.machine.is_leaving(),
            newest_seen: self.newest_for_all(),
            saving,
            own_time: std::time::Duration::ZERO,
        })
    }

    /// The small collective at the end of each step; see [`World::end_step`].
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn end_step_by_collective(
        &mut self,
        local_loss_sum: f64,
        own: &RankVote,
    ) -> Result<StepOutcome, Failure> {
        let end = self.world()?.end_step(local_loss_sum, own)?;
        Ok(self.finish_step(end))
    }

    /// The end of a step whose numbers have come with the gradients; see [`StepOutcome::of_ranks`]. `finite`: whether the
    /// gradients are, which are the same on all ranks.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when they are not the numbers of all ranks.
    pub fn end_step_from_votes(
        &mut self,
        ranks: &[Vec<f64>],
        finite: bool,
    ) -> Result<StepOutcome, Failure> {
        let mut end = StepOutcome::of_ranks(ranks).ok_or_else(|| {
            Failure::PeerLost("what came with the gradients is not of all ranks".to_owned())
        })?;
        end.agreement.all_finite &= finite;
        Ok(self.finish_step(end))
    }

    /// The end of a step whose sums have come from a device; see [`World::packing`].
    ///
    /// # Errors
    /// As [`Self::outcome_from_sums`].
    pub fn end_step_from_sums(&mut self, sums: &[f64]) -> Result<StepOutcome, Failure> {
        let end = self.outcome_from_sums(sums)?;
        Ok(self.finish_step(end))
    }

    /// The same for a step whose end is read late, after an error in a later one. How long that took says nothing of
    /// how long steps take.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank has dropped the step before, or the sums are not those of this world.
    pub fn outcome_from_sums(&self, sums: &[f64]) -> Result<StepOutcome, Failure> {
        let packing = self.world()?.packing();
        if packing.has_dropped(sums) {
            return Err(Failure::PeerLost(
                "a rank has not taken part in the step before".to_owned(),
            ));
        }
        packing.unpack(sums).ok_or_else(|| {
            Failure::PeerLost("the end of a step is that of another world".to_owned())
        })
    }

    /// The thread that watches the peers hears that a step has ended.
    fn finish_step(&self, end: StepOutcome) -> StepOutcome {
        if let Some(peers) = &self.peers {
            peers.interrupter.step_ends();
        }
        end
    }

    fn saving(&mut self) -> Result<Saving, Failure> {
        let generation = self.local_state.generation();
        let Some(checkpointing) = &mut self.checkpointing else {
            return Ok(Saving::default());
        };
        checkpointing.hear(generation, self.reporter)?;
        let is_time = checkpointing.saver.is_time();
        Ok(checkpointing.standing(is_time))
    }
}
