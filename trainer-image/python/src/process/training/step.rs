//! The end of a step: this rank's vote, the outcome, and its consequences.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use roundhouse_elastic::straggler::unevenness;
use roundhouse_elastic::{Batch, Event};
use roundhouse_member::Failure;
use roundhouse_member::faults::{self, Point};
use roundhouse_member::world::StepOutcome;
use roundhouse_report::{Section, Sections, StepReport};

use super::Training;
use super::numbers::{Layout, Read};
use crate::failure::lost;
use crate::process::internal;

/// The report of the script on a committed step.
#[derive(Clone, Copy, Debug)]
pub(in crate::process) struct CommitReport {
    pub(in crate::process) skipped: bool,
    pub(in crate::process) gradient_norm: f64,
    pub(in crate::process) learning_rate: f64,
    /// Seconds of each section, in the order of [`Section::ALL`].
    pub(in crate::process) spent: [f64; 5],
}

/// The vote that a rank has sent at the end of a step. `numbers` is a
/// `roundhouse.step_numbers.StepNumbers`.
#[derive(Debug)]
pub(super) enum Sent {
    /// The sum over all ranks was started, with this turn.
    ToPeers {
        turn: u64,
        numbers: Py<PyAny>,
        sum: Py<PyAny>,
    },
    /// This process trains alone.
    Alone { numbers: Py<PyAny>, list: Vec<f64> },
}

/// The outcome of a vote.
#[derive(Debug)]
enum Ended {
    /// The outcome, and the total weight of the losses.
    Agreed(StepOutcome, f64),
    /// The gradients of the ranks differ; the message names the ranks.
    Differ(String),
    /// The weight of a rank is invalid; its script gets an error.
    NoWeight,
}

/// The outcome of a vote for the script.
#[derive(Debug, IntoPyObject)]
pub(in crate::process) enum Agreed {
    /// Mean loss, whether all numbers are finite, and the total weight of the losses; 0 if all
    /// samples have the same weight.
    Committed((f64, bool, f64)),
    /// No rank commits, because the gradients differ; the message names the ranks.
    Differ(String),
}

impl Training {
    /// Sends this rank's vote for the current step. Does not wait for the peers, but perhaps for
    /// this rank's copy of the step before.
    pub(in crate::process) fn send_vote(&mut self, numbers: Py<PyAny>) -> Result<(), Failure> {
        let Some((batch, vote)) = &mut self.begun else {
            return Err(internal("no step has begun"));
        };
        if self.sent.is_some() {
            return Err(internal("the vote for this step was already sent"));
        }
        let (world, mut late_vote) = self.member.world_and_late_vote()?;
        late_vote.complete(vote);
        faults::point(Point::Agree, world.rank(), batch.step);
        let layout = Layout::of(world);
        let list = layout.list(vote);
        let Some(group) = world.group() else {
            self.sent = Some(Ok(Sent::Alone { numbers, list }));
            return Ok(());
        };
        let (turn, list) = world.with_checksum(&list);
        let begun = Python::attach(|py| {
            let arguments = (group.object(py), list, layout.places());
            let sum = numbers.call_method1(py, "begin", arguments);
            sum.map_err(|error| lost(py, &error))
        });
        self.sent = Some(begun.map(|sum| Sent::ToPeers { turn, numbers, sum }));
        Ok(())
    }

    /// Waits for the outcome of the vote for the current step. `None` if the generation has failed.
    pub(in crate::process) fn agree(
        &mut self,
        broke: Option<String>,
    ) -> Result<Option<Agreed>, Failure> {
        let sent = self.sent.take();
        let Some(begun) = self.begun.take() else {
            return Err(internal("no step has begun"));
        };
        let ended = match (broke, sent) {
            (Some(why), _) => Err(Failure::PeerLost(why)),
            (None, Some(Ok(sent))) => self.end_of(&sent),
            (None, Some(Err(failure))) => Err(failure),
            (None, None) => Err(internal("no vote was sent for this step")),
        };
        match ended {
            Ok(Ended::Agreed(end, weight)) => {
                let loss = mean_loss(&end, &begun.0, weight);
                let finite = end.agreement.all_finite;
                let rank = self.member.world()?.rank();
                self.agreed = Some((end, weight));
                self.begun = Some(begun);
                faults::point(
                    Point::Update,
                    rank,
                    self.member.local_state.position.step + 1,
                );
                Ok(Some(Agreed::Committed((loss, finite, weight))))
            }
            Ok(Ended::Differ(words)) => {
                self.lose(&words);
                Ok(Some(Agreed::Differ(words)))
            }
            Ok(Ended::NoWeight) if self.member.world()?.size() == 1 => {
                // A process alone has no generation to lose: it may still commit the step.
                self.begun = Some(begun);
                Ok(None)
            }
            Ok(Ended::NoWeight) => {
                self.lose(
                    "a rank has given job.commit a weight that is not a number from 0 to 1e300",
                );
                Ok(None)
            }
            Err(Failure::PeerLost(why)) => {
                self.lose(&why);
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    fn end_of(&mut self, sent: &Sent) -> Result<Ended, Failure> {
        let world = self.member.world()?;
        let layout = Layout::of(world);
        let read: Vec<f64> = Python::attach(|py| {
            let read = match sent {
                Sent::ToPeers { numbers, sum, .. } => numbers.call_method1(py, "end", (sum,)),
                Sent::Alone { numbers, list } => {
                    let arguments = (list.as_slice(), layout.places());
                    numbers.call_method1(py, "alone", arguments)
                }
            };
            read.and_then(|read| read.extract(py))
                .map_err(|error| lost(py, &error))
        })?;
        let sums = match sent {
            Sent::ToPeers { turn, .. } => world.verify_sums(*turn, &read)?,
            Sent::Alone { .. } => read,
        };
        match layout.read(&sums)? {
            Read::Sums(end, weight) => {
                Ok(Ended::Agreed(self.member.end_step_from_sums(end)?, weight))
            }
            Read::Differ(words) => Ok(Ended::Differ(words)),
            Read::NoWeight => Ok(Ended::NoWeight),
        }
    }

    /// Counts the step and reports it.
    pub(in crate::process) fn conclude(&mut self, report: CommitReport) -> Result<(), Failure> {
        let (batch, end, weight) = self.take_agreed()?;
        let CommitReport {
            skipped,
            gradient_norm,
            learning_rate,
            spent,
        } = report;
        faults::point(Point::Commit, self.member.world()?.rank(), batch.step);
        let loss = mean_loss(&end, &batch, weight);
        self.member.count(&batch, skipped);
        self.member.note(&batch, loss, &end.saving);
        let mut sections = Sections::default();
        for (section, seconds) in Section::ALL.into_iter().zip(spent) {
            let spent = Duration::try_from_secs_f64(seconds);
            sections.add(section, spent.unwrap_or_default());
        }
        // The votes contain the compute times of the previous step.
        self.member
            .reporter
            .compare(&end.compute_seconds, self.unevenness);
        let now = Instant::now();
        let position = self.member.local_state.position;
        self.member.reporter.commit(&StepReport {
            step: batch.step,
            epoch: self.data_schedule.position_at(position.samples).epoch,
            num_samples: batch.num_samples(),
            loss,
            gradient_norm,
            learning_rate,
            skips: position.skips,
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

    /// Counts a step in doubt, without a report. After the body of the loop this process has to
    /// end.
    pub(in crate::process) fn conclude_in_doubt(&mut self, skipped: bool) -> Result<(), Failure> {
        let (batch, end, weight) = self.take_agreed()?;
        self.member.count(&batch, skipped);
        let loss = mean_loss(&end, &batch, weight);
        self.member.note_in_doubt(&batch, loss);
        Ok(())
    }

    fn take_agreed(&mut self) -> Result<(Batch, StepOutcome, f64), Failure> {
        match (self.begun.take(), self.agreed.take()) {
            (Some((batch, _)), Some((end, weight))) => Ok((batch, end, weight)),
            _ => Err(internal("the ranks have not voted on this step")),
        }
    }

    /// Carries out the requests of the last committed step's outcome, after the body of the loop
    /// has ended. So a checkpoint contains all changes of the state after the commit. All ranks do
    /// this after the same step. A peer that is lost here ends the generation.
    ///
    /// Returns whether the collectives succeeded; `None` if there were none.
    pub(in crate::process) fn end_body(&mut self) -> Result<Option<bool>, Failure> {
        let Some(end) = self.ended_step.take() else {
            return Ok(None);
        };
        let num_sums = self.member.world()?.num_sums();
        let result = self.act(&end);
        if self.lost_or(result)?.is_none() {
            return Ok(Some(false));
        }
        let has_summed = self.member.world()?.num_sums() > num_sums;
        Ok(has_summed.then_some(true))
    }

    fn act(&mut self, end: &StepOutcome) -> Result<(), Failure> {
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

/// The mean of the losses of all ranks. `weight`: their total weight; 0 if all samples have the
/// same weight.
fn mean_loss(end: &StepOutcome, batch: &Batch, weight: f64) -> f64 {
    let of_samples = batch.num_samples() as f64;
    end.loss_sum / if weight > 0.0 { weight } else { of_samples }
}
