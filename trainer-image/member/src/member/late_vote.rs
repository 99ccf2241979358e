//! The part of a rank's vote that is read just before the vote is sent: whether the rank leaves,
//! and the state of its local copy.

use std::time::Duration;

use roundhouse_elastic::Machine;
use roundhouse_report::Reporter;

use super::Member;
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::lobby::{Peers, poll_inputs};
use crate::local_copies::{LocalCopies, copies_of};
use crate::signals::LeaveRequest;
use crate::world::{RankVote, World};

/// What a vote needs besides the ranks.
#[derive(Debug)]
pub struct LateVote<'a, R> {
    machine: &'a mut Machine,
    peers: Option<&'a mut Peers<R>>,
    leave: &'a LeaveRequest,
    copies: Option<&'a mut LocalCopies>,
    reporter: &'a mut Reporter,
    is_in_first_replica: bool,
}

impl<R: Rendezvous> Member<'_, R> {
    /// The ranks of the generation, and the late part of this rank's vote.
    ///
    /// # Errors
    /// [`Failure::Internal`] outside of a generation, which is a defect of the caller.
    pub fn world_and_late_vote(&mut self) -> Result<(&World<R::Group>, LateVote<'_, R>), Failure> {
        let world = self.world.as_ref();
        let world = world.ok_or_else(|| Failure::Internal("no generation is formed".to_owned()))?;
        let late_vote = LateVote {
            machine: &mut self.machine,
            peers: self.peers.as_mut(),
            leave: &self.leave,
            copies: self.checkpointing.as_mut().and_then(copies_of),
            reporter: self.reporter,
            is_in_first_replica: world.is_in_first_replica(),
        };
        Ok((world, late_vote))
    }

    /// Completes this rank's vote: see [`LateVote::complete`].
    ///
    /// # Errors
    /// Those of [`Self::world_and_late_vote`].
    pub fn complete_vote(&mut self, vote: &mut RankVote) -> Result<(), Failure> {
        self.world_and_late_vote()?.1.complete(vote);
        Ok(())
    }
}

impl<R> LateVote<'_, R> {
    /// Completes the vote of this rank. A request to leave that arrives before the end of a step
    /// takes effect at that end and not at the next one. If each step is copied to another pod,
    /// waits for at most 5 s for the copy of the step before.
    pub fn complete(&mut self, vote: &mut RankVote) {
        if let Some(copies) = &mut self.copies {
            let time = copies.wait_before_vote();
            if time > Duration::ZERO {
                copies.report(self.reporter, time);
                copies.note_in(&mut vote.saving, self.is_in_first_replica);
            }
        }
        poll_inputs(self.machine, self.peers.as_deref_mut(), self.leave);
        vote.leaving = self.machine.is_leaving();
    }
}
