//! The end of a step: what this rank tells, what all agree on, and what comes of it.

use std::time::{Duration, Instant};

use roundhouse_elastic::straggler::unevenness;
use roundhouse_elastic::{Batch, Event};
use roundhouse_member::Failure;
use roundhouse_member::faults::{self, Point};
use roundhouse_member::report::StepReport;
use roundhouse_member::sections::{Section, Sections};
use roundhouse_member::world::{Standing, StepEnd, not_of_all_ranks};

use super::Training;
use crate::group::Begun;
use crate::process::internal;

/// What the script tells of a step that is committed.
#[derive(Clone, Copy, Debug)]
pub(in crate::process) struct Told {
    pub(in crate::process) skipped: bool,
    pub(in crate::process) gradient_norm: f64,
    pub(in crate::process) learning_rate: f64,
    /// Seconds of each section.
    pub(in crate::process) spent: [f64; 5],
}

/// What a rank has told the others at the end of a step.
#[derive(Debug)]
pub(super) enum Sent {
    /// The sum of this number is on its way.
    ToPeers { turn: u64, sum: Begun },
    /// There is no other rank: the sum of its losses, and their weight.
    Alone { loss_sum: f64, weight: f64 },
}

impl Training {
    /// This rank tells its peers what it brings to the end of the step that has begun. It does not wait for them.
    /// `weight`: what its losses weigh, if the script says so; not negative, and finite.
    pub(in crate::process) fn tell(
        &mut self,
        loss_sum: f64,
        finite: bool,
        weight: Option<f64>,
    ) -> Result<(), Failure> {
        let weight = weight.unwrap_or_default();
        let leaving = self.member.world_and_leave_watch()?.1.is_leaving();
        let Some((batch, standing)) = &mut self.begun else {
            return Err(internal("no step has begun"));
        };
        if self.told.is_some() {
            return Err(internal("the end of this step was told before"));
        }
        standing.finite = finite;
        standing.leaving = leaving;
        let world = self.member.world()?;
        faults::point(Point::Agree, world.rank(), batch.step);
        self.told = Some(match world.group() {
            None => Ok(Sent::Alone { loss_sum, weight }),
            Some(group) => {
                let mut numbers = world.packing().pack(standing, loss_sum);
                numbers.push(weight);
                let (turn, numbers) = world.with_witness(&numbers);
                let sum = group.begin_sum(numbers);
                sum.map(|sum| Sent::ToPeers { turn, sum })
            }
        });
        Ok(())
    }

    /// The end of the step that has begun; `None`: the generation broke. `finite`: whether the gradients are, as far as
    /// they are the same on all ranks.
    pub(in crate::process) fn agree(
        &mut self,
        finite: bool,
        broke: Option<String>,
    ) -> Result<Option<(f64, bool, f64)>, Failure> {
        let told = self.told.take();
        let Some((batch, standing)) = self.begun.take() else {
            return Err(internal("no step has begun"));
        };
        let ended = match (broke, told) {
            (Some(why), _) => Err(Failure::PeerLost(why)),
            (None, Some(Ok(sent))) => self.end_of(sent, &standing),
            (None, Some(Err(failure))) => Err(failure),
            (None, None) => Err(internal("it has told its peers nothing")),
        };
        match ended {
            Ok((mut end, weight)) => {
                end.agreement.all_finite &= finite;
                let loss = mean_loss(&end, &batch, weight);
                let finite = end.agreement.all_finite;
                let rank = self.member.world()?.rank();
                self.agreed = Some((end, weight));
                self.begun = Some((batch, standing));
                faults::point(Point::Update, rank, self.member.held.mark.step + 1);
                Ok(Some((loss, finite, weight)))
            }
            Err(Failure::PeerLost(why)) => {
                self.lose(&why);
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// What all ranks have told, and what their losses weigh together.
    fn end_of(&mut self, sent: Sent, standing: &Standing) -> Result<(StepEnd, f64), Failure> {
        match sent {
            Sent::Alone { loss_sum, weight } => {
                let end = self.member.end_step(loss_sum, standing)?;
                Ok((end, weight))
            }
            Sent::ToPeers { turn, sum } => {
                let world = self.member.world()?;
                let group = world.group();
                let group = group.ok_or_else(|| internal("a world of one has no peers"))?;
                let sums = group.end_sum(sum)?;
                let sums = world.hear(turn, &sums)?;
                let (weight, sums) = sums.split_last().ok_or_else(not_of_all_ranks)?;
                let end = self.member.end_step_of(sums)?;
                Ok((end, *weight))
            }
        }
    }

    /// The step counts, and is told.
    pub(in crate::process) fn conclude(&mut self, told: Told) -> Result<(), Failure> {
        let (Some((batch, _)), Some((end, weight))) = (self.begun.take(), self.agreed.take())
        else {
            return Err(internal("a step whose end was not agreed on"));
        };
        let Told {
            skipped,
            gradient_norm,
            learning_rate,
            spent,
        } = told;
        faults::point(Point::Commit, self.member.world()?.rank(), batch.step);
        let loss = mean_loss(&end, &batch, weight);
        self.member.count(&batch, skipped);
        self.member.note(&batch, loss, &end.saving);
        let mut sections = Sections::default();
        for (section, seconds) in Section::ALL.into_iter().zip(spent) {
            let spent = Duration::try_from_secs_f64(seconds);
            sections.add(section, spent.unwrap_or_default());
        }
        // What the ranks have told is their time of the step before.
        self.member
            .reporter
            .compare(&end.own_seconds, self.unevenness);
        let now = Instant::now();
        let mark = self.member.held.mark;
        self.member.reporter.commit(&StepReport {
            step: batch.step,
            epoch: self.course.position_at(mark.samples).epoch,
            num_samples: batch.num_samples(),
            loss,
            gradient_norm,
            learning_rate,
            skips: mark.skips,
            loss_scale: None,
            duration: now.duration_since(self.ended),
            sections,
        });
        self.own_time = sections.own_time();
        self.unevenness = unevenness(batch.num_samples(), self.member.world()?.size(), None);
        self.ended = now;
        let longest = self.member.longest_step();
        if let Some(group) = self.member.world()?.group() {
            group.set_timeout(self.timeouts.of_step(longest));
        }
        // The script may still change the state in the rest of the loop's body.
        self.ended_step = Some(end);
        Ok(())
    }

    /// Does what the end of the last committed step asks for, once the body of the loop is over: a checkpoint has all
    /// that the script does with the state after its commit. All ranks do this after the same step. A peer that is lost
    /// here costs the generation.
    pub(in crate::process) fn end_body(&mut self) -> Result<(), Failure> {
        let Some(end) = self.ended_step.take() else {
            return Ok(());
        };
        let result = self.act(&end);
        self.lost_or(result).map(|_| ())
    }

    fn act(&mut self, end: &StepEnd) -> Result<(), Failure> {
        if self.begins_save(end)? {
            self.check_equal()?;
        }
        self.member.save_on(&end.saving, &self.state)?;
        if end.agreement.all_leave {
            self.member.save_before_leaving(&self.state)?;
        }
        self.member.apply(Event::Boundary {
            agreed_generation: end.agreement.newest_generation,
            all_leave: end.agreement.all_leave,
        });
        Ok(())
    }
}

/// The mean of the losses of all ranks. `weight`: what they weigh together; 0 if each sample weighs the same.
fn mean_loss(end: &StepEnd, batch: &Batch, weight: f64) -> f64 {
    let of_samples = batch.num_samples() as f64;
    end.loss_sum / if weight > 0.0 { weight } else { of_samples }
}
