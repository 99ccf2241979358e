//! Between steps: sums of the script's own, evaluations, and the end.

use std::time::Duration;

use roundhouse_contract::Phase;
use roundhouse_elastic::Event;
use roundhouse_member::Failure;
use roundhouse_report::Evaluation;

use super::Training;

impl Training {
    /// `None`: the generation broke, now or before.
    pub(in crate::process) fn sum(&mut self, values: &[f64]) -> Result<Option<Vec<f64>>, Failure> {
        let Ok(world) = self.member.world() else {
            return Ok(None);
        };
        let sums = world.sum_signed(values);
        self.lost_or(sums)
    }

    /// Committed samples at the last evaluation; 0 before the first. All ranks of a generation have the same.
    pub(in crate::process) const fn evaluated(&self) -> u64 {
        self.member.local_state.evaluated
    }

    /// The state was evaluated on all ranks, with the same result: it is reported, and the end of the evaluation is a
    /// boundary, as a step's end is. False: the generation broke after that; the state need not be evaluated again.
    pub(in crate::process) fn evaluated_as(
        &mut self,
        evaluation: &Evaluation,
    ) -> Result<bool, Failure> {
        (self.begun, self.told) = (None, None);
        self.member.reporter.evaluated(evaluation);
        self.member.local_state.evaluated = self.member.local_state.position.samples;
        if self
            .data_schedule
            .batch_at(&self.member.local_state.position)
            .is_none()
        {
            // Only the last save is left to do, which needs no newcomer.
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

    /// What comes now takes ranks differently long.
    pub(in crate::process) fn begin_evaluation(&mut self, counts: bool) -> Result<(), Failure> {
        self.member.local_state.evaluation_counts = counts;
        (self.begun, self.told) = (None, None);
        self.member.enter(Phase::Evaluating);
        if let Some(group) = self.member.world()?.group() {
            group.set_timeout(self.timeouts.beside_steps(None));
        }
        Ok(())
    }

    /// The script does something that may take a rank so long, while the others wait for it: collectives and the agent's
    /// watchdog have as much patience. It may begin in a step or after its commit.
    pub(in crate::process) fn begin_wait(&mut self, span: Duration) {
        let Ok(world) = self.member.world() else {
            return;
        };
        if let Some(group) = world.group() {
            group.set_timeout(span);
        }
        self.member.reporter.is_patient(span);
        self.member.enter(Phase::Evaluating);
    }

    /// All ranks are done with it. False: the generation broke, now or before.
    pub(in crate::process) fn end_wait(&mut self) -> Result<bool, Failure> {
        let Ok(world) = self.member.world() else {
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

    /// The state is saved, on all ranks; false: the generation broke, now or before.
    pub(in crate::process) fn finish(&mut self) -> Result<bool, Failure> {
        let Ok(world) = self.member.world() else {
            return Ok(false);
        };
        if let Some(group) = world.group() {
            group.set_timeout(self.timeouts.beside_steps(None));
        }
        // The save of the result does whatever a step's end has asked for: all ranks have left the loop after the same one.
        self.ended_step = None;
        let saved = self.member.save_result(&self.state);
        let saved = saved.and_then(|()| self.member.world()?.barrier());
        Ok(self.lost_or(saved)?.is_some())
    }
}
