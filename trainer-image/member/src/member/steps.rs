//! The beginning and the end of a step.

use std::time::Duration;

use super::Member;
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::local_copies::copies_of;
use crate::world::{RankVote, Saving, StepOutcome, World};

impl<R: Rendezvous> Member<'_, R> {
    /// Begins a step. Returns this rank's vote for its end, as far as it is known.
    ///
    /// # Errors
    /// [`Failure::Fenced`] if a newer generation has written.
    pub fn begin_step(&mut self) -> Result<RankVote, Failure> {
        if let Some(peers) = &self.peers {
            peers.interrupter.step_begins();
            let longest = peers.interrupter.longest_step();
            peers.rendezvous.publish_longest_step(longest);
            peers.rendezvous.publish_time_beside_steps(Duration::ZERO);
        }
        let saving = self.saving()?;
        Ok(RankVote {
            finite: true,
            leaving: self.machine.is_leaving(),
            newest_seen: self.newest_for_all(),
            saving,
            own_time: Duration::ZERO,
        })
    }

    /// Ends a step with a collective of the host; see [`World::end_step`].
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost.
    pub fn end_step_by_collective(
        &mut self,
        local_loss_sum: f64,
        own: &RankVote,
    ) -> Result<StepOutcome, Failure> {
        let end = self.world()?.end_step(local_loss_sum, own)?;
        Ok(self.finish_step(end))
    }

    /// Ends a step whose votes were gathered with the gradients; see [`StepOutcome::of_ranks`].
    /// `finite` is whether the gradients are finite, the same on all ranks.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if the votes are not those of all ranks.
    pub fn end_step_from_votes(
        &mut self,
        ranks: &[Vec<f64>],
        finite: bool,
    ) -> Result<StepOutcome, Failure> {
        let mut end = StepOutcome::of_ranks(ranks).ok_or_else(|| {
            Failure::PeerLost(
                "the votes that came with the gradients are not those of all ranks".to_owned(),
            )
        })?;
        end.agreement.all_finite &= finite;
        Ok(self.finish_step(end))
    }

    /// Ends a step whose sums a device has computed; see [`World::packing`].
    ///
    /// # Errors
    /// Those of [`Self::outcome_from_sums`].
    pub fn end_step_from_sums(&mut self, sums: &[f64]) -> Result<StepOutcome, Failure> {
        let end = self.outcome_from_sums(sums)?;
        Ok(self.finish_step(end))
    }

    /// Reads the outcome of a step late, after an error in a later step. Does not count as the end
    /// of a step, because its time is not the duration of a step.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank has dropped the previous step, or if the sums belong to
    /// another number of ranks.
    pub fn outcome_from_sums(&self, sums: &[f64]) -> Result<StepOutcome, Failure> {
        let packing = self.world()?.packing();
        if packing.has_dropped(sums) {
            return Err(Failure::PeerLost(
                "a rank has not taken part in the previous step".to_owned(),
            ));
        }
        packing.unpack(sums).ok_or_else(|| {
            Failure::PeerLost("the outcome of a step has the wrong number of ranks".to_owned())
        })
    }

    /// Records the end of a step for the thread that watches the peers.
    fn finish_step(&self, end: StepOutcome) -> StepOutcome {
        if let Some(peers) = &self.peers {
            peers.interrupter.step_ends();
        }
        end
    }

    fn saving(&mut self) -> Result<Saving, Failure> {
        if let Some(copies) = self.checkpointing.as_mut().and_then(copies_of) {
            copies.report(self.reporter, Duration::ZERO);
        }
        let generation = self.local_state.generation();
        let Some(checkpointing) = &mut self.checkpointing else {
            return Ok(Saving::default());
        };
        checkpointing.report_results(generation, self.reporter)?;
        let is_time = checkpointing.saver.is_time();
        let mut saving = checkpointing.standing(is_time);
        saving.copy_failed &= self.world.as_ref().is_some_and(World::is_in_first_replica);
        Ok(saving)
    }
}
