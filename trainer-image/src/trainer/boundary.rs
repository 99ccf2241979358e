//! What is done between steps: evaluation, and the end.

use roundhouse_contract::Phase;
use roundhouse_elastic::{Activity, Event};

use super::last_save::Purpose;
use super::lobby::look;
use super::{Peers, Trainer};
use crate::evaluate::evaluate;
use crate::failure::Failure;
use crate::membership::POLL_INTERVAL;
use crate::report::say_error;
use crate::weights;

impl Trainer<'_> {
    /// At the end of every so many epochs and of training, unless it has been done: a world that breaks while it
    /// evaluates does it again in the next generation.
    pub(super) fn is_evaluation_due(&self) -> bool {
        let samples = self.mark.samples;
        let every_epochs = self.config.eval.every_epochs;
        self.evaluated != samples && self.course.is_evaluated_at(samples, every_epochs)
    }

    /// Evaluates, unless somebody who is to leave breaks it off, or who is alone and waited for too long. A
    /// boundary, as a step's end is, unless training is complete.
    pub(super) fn evaluate(&mut self) -> Result<Event, Failure> {
        self.enter(Phase::Evaluating);
        let (leave, peers) = (&self.leave, &self.peers);
        let is_over = || {
            let has_waited = |peers: &Peers| peers.interrupter.is_over();
            leave.is_pressing() || peers.as_ref().is_some_and(has_waited)
        };
        let evaluation = evaluate(
            self.model.as_ref(),
            &self.data.test,
            self.world()?,
            self.config.micro_batch_size,
            is_over,
        )?;
        if let Some(evaluation) = &evaluation {
            self.evaluated = self.mark.samples;
            self.reporter.evaluated(evaluation);
        }
        if evaluation.is_some() && self.course.batch_at(&self.mark).is_none() {
            // What is left to do, the last save, needs no newcomer, and is all that who leaves could do.
            return Ok(Event::Boundary {
                agreed_generation: self.machine.current_generation().unwrap_or_default(),
                all_leave: false,
            });
        }
        look(&mut self.machine, self.peers.as_mut(), &self.leave);
        let newest = self.newest_for_all();
        let agreement = self.world()?.agree(newest, self.machine.is_leaving())?;
        if agreement.all_leave {
            self.save_before_leaving()?;
        } else {
            self.enter(Phase::Training);
        }
        if evaluation.is_none() {
            // It is due again, and will be broken off again before the generation without whoever leaves is there.
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(Event::Boundary {
            agreed_generation: agreement.newest_generation,
            all_leave: agreement.all_leave,
        })
    }

    /// All leave, so that the state is nowhere but on the volume. A peer that is gone already has left.
    pub(super) fn save_before_leaving(&mut self) -> Result<(), Failure> {
        self.leave.hold_on();
        self.enter(Phase::Saving);
        match self.save_now(Purpose::Leaving) {
            Err(failure @ (Failure::PeerLost(_) | Failure::Unsaved { .. })) => {
                say_error(&format!("no checkpoint of the last step: {failure}"));
                Ok(())
            }
            result => result,
        }
    }

    /// Nobody ends before the results are written: whoever ends with success knows that they are.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.leave.hold_on();
        self.enter(Phase::Saving);
        let saved = self.save_now(Purpose::Result);
        if !matches!(saved, Ok(()) | Err(Failure::Unsaved { .. })) {
            return saved;
        }
        // The weights may be for another volume.
        let world = self.world()?;
        if let (Some(path), 0) = (&self.launch.save_weights, world.rank()) {
            weights::save(path, self.model.parameters())?;
        }
        world.barrier()?;
        saved
    }

    /// Enters a phase of a generation that is formed. Who watches the peers must know which, for each has its
    /// patience; steps tell of themselves.
    fn enter(&mut self, phase: Phase) {
        let activity = match phase {
            Phase::Evaluating => Some(Activity::Evaluation),
            Phase::Saving => Some(Activity::Saving),
            Phase::Preparing
            | Phase::Lobby
            | Phase::Forming
            | Phase::Training
            | Phase::Stranded
            | Phase::Done => None,
        };
        if let (Some(activity), Some(peers)) = (activity, &self.peers) {
            peers.interrupter.enter(activity);
        }
        self.reporter.enter(phase);
    }
}
