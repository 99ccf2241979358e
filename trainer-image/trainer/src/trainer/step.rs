//! One step: its gradients, then the vote and the update. This module has the whole step if the
//! host commits it; [`super::ahead`] has the rest for the device.

use std::time::{Duration, Instant};

use roundhouse_c10d::Event as DeviceEvent;
use roundhouse_elastic::{Batch, Event, Permutation, TrainingPosition};
use roundhouse_member::faults::{self, Point};
use roundhouse_member::world::{RankVote, StepOutcome};
use roundhouse_report::Section;

use super::Trainer;
use super::in_doubt::InDoubt;
use crate::clip::{self, Measured};
use crate::failure::Failure;
use crate::gradients::{Gradients, Numbers, OwnLoss, gradients};
use crate::replica::{self, Replica};
use crate::stopwatch::Stopwatch;
use crate::sync::{Commit, Finished};
use crate::update::{Rate, Signals};

/// A step in progress.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) batch: Batch,
    pub(super) rate: Rate,
    pub(super) started: Instant,
    pub(super) stopwatch: Stopwatch,
    /// Unevenness of the step whose time [`RankVote::own_time`](roundhouse_member::world::RankVote)
    /// reports.
    pub(super) reported_unevenness: Option<f64>,
}

impl Begun {
    /// The event on the device after all work of the step.
    pub(super) fn end(&self) -> Result<&DeviceEvent, Failure> {
        let end = self.stopwatch.end();
        end.ok_or_else(|| {
            Failure::internal("the host measures this step, so it has no end on the device")
        })
    }
}

impl Trainer<'_> {
    /// Runs one optimizer step of the process group, or an evaluation or the end of training if one
    /// of them is due. An error before the update leaves the weights unchanged; the update itself
    /// is local and waits for no peer. Returns `None` if the loop continues with another step.
    pub(super) fn step(&mut self) -> Result<Option<Event>, Failure> {
        let result = self.try_step();
        if result.is_err() {
            self.tracer.step_fails();
            self.settle_what_is_done();
        }
        result.map_err(|failure| match self.member.world() {
            Ok(world) => failure.on_rank(world.rank()),
            Err(_) => failure,
        })
    }

    fn try_step(&mut self) -> Result<Option<Event>, Failure> {
        if self.is_evaluation_due() {
            self.tracer.steps_end();
            return self.evaluate().map(Some);
        }
        let position = self.position_ahead();
        let Some(batch) = self.plan.data_schedule.batch_at(&position) else {
            self.tracer.steps_end();
            self.finish()?;
            return Ok(Some(Event::Finished));
        };
        match self.commit {
            Commit::Host => self.step_on_host(batch, &position).map(Some),
            Commit::Device => self.step_ahead(batch, &position),
        }
    }

    fn step_on_host(
        &mut self,
        batch: Batch,
        position: &TrainingPosition,
    ) -> Result<Event, Failure> {
        self.enter_passes()?;
        let (mut begun, mut rank_vote) = self.begin(batch, position, Stopwatch::on_host())?;
        let Gradients {
            local_loss: OwnLoss::Host(local_loss),
            finished,
        } = self.gradients(&mut begun, position, Some(&mut rank_vote))?
        else {
            return Err(Failure::internal("the host has not read the loss"));
        };
        let rank = self.member.world()?.rank();
        let loss_factor = self.loss_factor(position);
        let Measured {
            norm,
            is_finite,
            divisor,
        } = begun
            .stopwatch
            .time(Section::Optimizer, || self.measure(loss_factor))?;
        rank_vote.finite = is_finite;
        faults::point(Point::Agree, rank, begun.batch.step);
        let end = begun.stopwatch.time(Section::Communication, || {
            self.agree(local_loss, finished, rank_vote)
        })?;
        let confirmed = begun
            .stopwatch
            .time(Section::Communication, || self.confirm(begun.batch.step));
        if let Err(failure) = confirmed {
            if self.replica.as_ref().is_some_and(Replica::has_voted) && failure.is_replica_lost() {
                let step = InDoubt {
                    end: &end,
                    local_loss,
                    gradient_norm: norm,
                    divisor: divisor.as_ref(),
                };
                self.finish_in_doubt(begun, &step);
            }
            return Err(failure);
        }
        let judged = self.judge(&begun.batch, &end, local_loss, norm)?;
        faults::point(Point::Update, rank, begun.batch.step);
        if judged.updates() {
            let signals = Signals {
                skip: None,
                divisor: divisor.as_ref(),
            };
            self.apply(&mut begun, signals)?;
            if let Err(failure) = self.complete(&mut begun) {
                // This process has its part of the step, which all processes of the replica commit.
                self.count_in_doubt(&begun.batch, &judged);
                return Err(failure);
            }
        }
        faults::point(Point::Commit, rank, begun.batch.step);
        self.conclude(begun, &end, &judged)?;
        self.tracer.step_ends();
        self.act(&end)
    }

    /// Checks that all processes of the replica begin the passes of this step, if the passes need
    /// all of them. A process whose last collective of the ranks has failed leaves the generation.
    fn enter_passes(&mut self) -> Result<(), Failure> {
        if self.work.task.parameters().sharing().is_none() {
            return Ok(());
        }
        self.confirm_with_replica()
    }

    /// Measures the gradients; if they are sharded, over all processes of the replica.
    fn measure(&mut self, loss_factor: Option<f64>) -> Result<Measured, Failure> {
        let most = self.work.config.optimizer.max_grad_norm;
        let (generation, timeout) = (self.member.current_generation(), self.timeout_of_turn());
        let parameters = self.work.task.parameters();
        match (parameters.sharing(), &mut self.replica) {
            (Some(sharing), Some(replica)) => {
                let (leaves, num_own) = parameters.leaves();
                let own = clip::Sharded {
                    leaves: &leaves,
                    num_own,
                    counts_replicated: sharing.shard == 0,
                };
                let sum = |own| replica.sum(generation, own, timeout);
                clip::measure_in_replica(&own, loss_factor, most, sum)
            }
            _ => Ok(clip::measure(parameters, loss_factor, most)?),
        }
    }

    /// Checks that all processes of the replica have the same outcome of the vote.
    fn confirm(&mut self, step: u64) -> Result<(), Failure> {
        let rank = self.member.world()?.rank();
        faults::point(Point::Column, rank, step);
        let (generation, timeout) = (self.member.current_generation(), self.timeout_of_turn());
        if let Some(replica) = &mut self.replica
            && let Some(cut) = faults::cut_of(rank)
        {
            replica.cut(generation, cut, timeout);
        }
        self.confirm_with_replica()
    }

    /// Checks that the last collective of the ranks has succeeded in all processes of the replica.
    pub(super) fn confirm_with_replica(&mut self) -> Result<(), Failure> {
        let (generation, timeout) = (self.member.current_generation(), self.timeout_of_turn());
        match &mut self.replica {
            Some(replica) => replica.confirm(generation, timeout),
            None => Ok(()),
        }
    }

    /// Twice the timeout of a collective: a sibling whose collective fails reports it only after
    /// that timeout.
    pub(super) fn timeout_of_turn(&self) -> Duration {
        let longest = self.member.longest_step();
        2 * self.launch.timeouts.of_first_step(longest)
    }

    /// Applies the gradients to the weights that this process updates.
    pub(super) fn apply(&mut self, begun: &mut Begun, signals: Signals<'_>) -> Result<(), Failure> {
        let Begun {
            stopwatch, rate, ..
        } = begun;
        self.uncounted_updates += 1;
        let parameters = self.work.task.parameters_mut();
        let applied = stopwatch.time(Section::Optimizer, || {
            self.work.update.apply(parameters, *rate, signals)
        });
        Ok(applied?)
    }

    /// Fetches the weights that other processes of the replica have updated.
    pub(super) fn complete(&mut self, begun: &mut Begun) -> Result<(), Failure> {
        let stopwatch = &mut begun.stopwatch;
        let completed = stopwatch.time(Section::Communication, || self.work.update.complete());
        completed.map_err(replica::explain)
    }

    /// Begins a step at this position. Returns the step, and this rank's vote as far as it is
    /// known.
    pub(super) fn begin(
        &mut self,
        batch: Batch,
        position: &TrainingPosition,
        mut stopwatch: Stopwatch,
    ) -> Result<(Begun, RankVote), Failure> {
        self.tracer.step_begins();
        let mut rank_vote = self.member.begin_step()?;
        rank_vote.own_time = self.last_step.own_time;
        let started = Instant::now();
        stopwatch.time(Section::Data, faults::slow_down);
        let rate = Rate {
            learning_rate: self.plan.rates.rate(position.samples)
                * self.plan.scaling.factor(position),
            // Bias corrections count only the steps with an update.
            step: batch.step - position.skips.total,
        };
        let begun = Begun {
            batch,
            rate,
            started,
            stopwatch,
            reported_unevenness: self.last_step.unevenness,
        };
        Ok((begun, rank_vote))
    }

    /// Computes the mean gradients of the batch and leaves them in the task. This rank's vote, if
    /// it travels with the gradients, is read as late as possible.
    pub(super) fn gradients(
        &mut self,
        begun: &mut Begun,
        position: &TrainingPosition,
        rank_vote: Option<&mut RankVote>,
    ) -> Result<Gradients, Failure> {
        let Begun {
            batch, stopwatch, ..
        } = begun;
        let order = self.order(batch.epoch);
        let loss_factor = self.loss_factor(position);
        let next = self
            .plan
            .data_schedule
            .batch_at(&position.after(batch.num_samples()));
        let next = next.map(|next| (self.order(next.epoch), next));
        let Self {
            member,
            work,
            sync,
            tracer,
            ..
        } = self;
        let Some(sync) = sync else {
            return Err(Failure::internal("a step before its generation was formed"));
        };
        let mut inputs = work.inputs(batch, &order);
        inputs.loss_factor = loss_factor;
        inputs.next = next.as_ref().map(|(order, next)| (next, order));
        let (world, mut late_vote) = member.world_and_late_vote()?;
        let mut numbers = rank_vote.map(|rank_vote| {
            move |local_loss| {
                late_vote.complete(rank_vote);
                rank_vote.to_numbers(world.rank(), local_loss).to_vec()
            }
        });
        let numbers = numbers.as_mut().map(|numbers| -> Numbers<'_> { numbers });
        gradients(
            &mut inputs,
            sync.as_mut(),
            world,
            numbers,
            stopwatch,
            tracer,
        )
    }

    /// The outcome of the ranks' vote, which was sent with the gradients or in a separate
    /// collective.
    fn agree(
        &mut self,
        local_loss: f64,
        finished: Finished,
        mut rank_vote: RankVote,
    ) -> Result<StepOutcome, Failure> {
        let Finished {
            numbers,
            loss_sum,
            digest: _,
        } = finished;
        let mut end = if let Some(numbers) = numbers {
            self.member
                .end_step_from_votes(&numbers, rank_vote.finite)?
        } else {
            self.member.complete_vote(&mut rank_vote)?;
            self.member.end_step_by_collective(local_loss, &rank_vote)?
        };
        if let Some(loss_sum) = loss_sum {
            end.loss_sum = loss_sum.f_double_value(&[0])?;
        }
        Ok(end)
    }

    pub(super) fn order(&self, epoch: u64) -> Permutation {
        self.plan.identity.order(epoch)
    }
}
