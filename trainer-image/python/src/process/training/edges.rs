//! Work between steps: sums of the script, evaluations, and the end of training.

use std::time::Duration;

use roundhouse_contract::Phase;
use roundhouse_elastic::Event;
use roundhouse_member::{Failure, World};
use roundhouse_report::Evaluation;

use super::Training;

impl Training {
    /// Sums numbers of the script. `None` if the generation has failed, now or before.
    pub(in crate::process) fn sum(&mut self, values: &[f64]) -> Result<Option<Vec<f64>>, Failure> {
        let Ok(world) = self.member.world() else {
            return Ok(None);
        };
        let sums = world.sum_signed(values);
        self.lost_or(sums)
    }

    /// Committed samples at the last evaluation, the same on all ranks of a generation; 0 before
    /// the first evaluation.
    pub(in crate::process) const fn evaluated(&self) -> u64 {
        self.member.local_state.evaluated
    }

    /// Reports an evaluation with the same result on all ranks. Its end is a boundary like the end
    /// of a step. False if the generation has failed after the evaluation, which need not be
    /// repeated.
    pub(in crate::process) fn evaluated_as(
        &mut self,
        evaluation: &Evaluation,
    ) -> Result<bool, Failure> {
        (self.begun, self.sent) = (None, None);
        self.member.reporter.evaluated(evaluation);
        self.member.local_state.evaluated = self.member.local_state.position.samples;
        if self
            .data_schedule
            .batch_at(&self.member.local_state.position)
            .is_none()
        {
            // Only the final save remains, which needs no new rank.
            return Ok(true);
        }
        self.member.poll_inputs();
        let newest = self.member.newest_for_all();
        let is_leaving = self.member.is_leaving();
        let world = self.member.world()?;
        let agreed = world.agree(newest, is_leaving);
        let Some(agreed) = self.lost_or(agreed)? else {
            return Ok(false);
        };
        if agreed.all_leave {
            self.member.save_before_leaving(&self.state)?;
        } else {
            self.member.enter(Phase::Training);
        }
        self.member.apply(Event::Boundary {
            agreed_generation: agreed.newest_generation,
            all_leave: agreed.all_leave,
        });
        Ok(true)
    }

    /// Begins an evaluation, whose duration differs between ranks.
    pub(in crate::process) fn begin_evaluation(&mut self, counts: bool) -> Result<(), Failure> {
        self.member.local_state.evaluation_counts = counts;
        (self.begun, self.sent) = (None, None);
        let most = self.timeouts.beside_steps(None);
        self.member.evaluates(most);
        if let Some(group) = self.member.world()?.group() {
            group.set_timeout(most);
        }
        Ok(())
    }

    /// Begins work of the script that may take `span` on a rank while the others wait. Raises the
    /// timeouts of collectives and of the agent's watchdog. It may begin in a step, after its
    /// commit, or when the generation has failed, and it continues if the generation fails.
    pub(in crate::process) fn begin_wait(&mut self, span: Duration) {
        if let Some(group) = self.member.world().ok().and_then(World::group) {
            group.set_timeout(span);
        }
        self.waits = Some(span);
        self.works_alone(span);
    }

    /// Reports work that may take `span`.
    pub(super) fn works_alone(&mut self, span: Duration) {
        self.member.reporter.is_patient(span);
        self.member.evaluates(span);
    }

    /// Waits until this work is done on all ranks. False if the generation has failed, now or
    /// before.
    pub(in crate::process) fn end_wait(&mut self) -> Result<bool, Failure> {
        self.waits = None;
        let Ok(world) = self.member.world() else {
            self.member.reporter.is_patient(Duration::ZERO);
            self.member.ends_work();
            return Ok(false);
        };
        let met = world.barrier();
        if self.lost_or(met)?.is_none() {
            return Ok(false);
        }
        self.member.reporter.is_patient(Duration::ZERO);
        let longest = self.member.longest_step();
        if let Some(group) = self.member.world()?.group() {
            group.set_timeout(self.timeouts.of_first_step(longest));
        }
        self.member.enter(Phase::Training);
        self.member.prepares_steps();
        Ok(true)
    }

    /// Saves the state on all ranks. False if the generation has failed, now or before.
    pub(in crate::process) fn finish(&mut self) -> Result<bool, Failure> {
        let Ok(world) = self.member.world() else {
            return Ok(false);
        };
        if let Some(group) = world.group() {
            group.set_timeout(self.timeouts.beside_steps(None));
        }
        // The final save includes all requests of the last step's outcome, because all ranks have
        // left the loop after the same step.
        self.ended_step = None;
        let saved = self.member.save_result(&self.state);
        let saved = saved.and_then(|()| self.member.world()?.barrier());
        let saved = saved.and_then(|()| self.member.await_writer());
        Ok(self.lost_or(saved)?.is_some())
    }
}
