//! The end of a step: what this rank tells, what all agree on, and what comes of it.

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

/// What the script tells of a step that is committed.
#[derive(Clone, Copy, Debug)]
pub(in crate::process) struct Told {
    pub(in crate::process) skipped: bool,
    pub(in crate::process) gradient_norm: f64,
    pub(in crate::process) learning_rate: f64,
    /// Seconds of each section.
    pub(in crate::process) spent: [f64; 5],
}

/// What a rank has sent to the others at the end of a step. `numbers` is a `roundhouse.step_numbers.StepNumbers`.
#[derive(Debug)]
pub(super) enum Sent {
    /// Their sum, the one of this number, is on its way.
    ToPeers {
        turn: u64,
        numbers: Py<PyAny>,
        sum: Py<PyAny>,
    },
    /// There is no other rank.
    Alone { numbers: Py<PyAny>, list: Vec<f64> },
}

/// What came of the end of a step.
#[derive(Debug)]
enum Ended {
    /// What all ranks have sent, and what their losses weigh together.
    Agreed(StepOutcome, f64),
    /// Their gradients differ, in words.
    Differ(String),
    /// A rank has an invalid weight: its script gets an error.
    NoWeight,
}

/// The same for the script.
#[derive(Debug, IntoPyObject)]
pub(in crate::process) enum Agreed {
    /// Mean loss, whether all is finite, and what the losses of all ranks weigh; 0 if each sample weighs the same.
    Committed((f64, bool, f64)),
    /// No rank commits: their gradients differ, in words.
    Differ(String),
}

impl Training {
    /// This rank tells its peers what it brings to the end of the step that has begun. It does not wait for them.
    pub(in crate::process) fn tell(&mut self, numbers: Py<PyAny>) -> Result<(), Failure> {
        let leaving = self.member.world_and_leave_watch()?.1.is_leaving();
        let Some((batch, vote)) = &mut self.begun else {
            return Err(internal("no step has begun"));
        };
        if self.told.is_some() {
            return Err(internal("the end of this step was told before"));
        }
        vote.leaving = leaving;
        let world = self.member.world()?;
        faults::point(Point::Agree, world.rank(), batch.step);
        let layout = Layout::new(world.rank(), world.size());
        let list = layout.list(vote);
        let Some(group) = world.group() else {
            self.told = Some(Ok(Sent::Alone { numbers, list }));
            return Ok(());
        };
        let (turn, list) = world.with_checksum(&list);
        let begun = Python::attach(|py| {
            let arguments = (group.object(py), list, layout.places());
            let sum = numbers.call_method1(py, "begin", arguments);
            sum.map_err(|error| lost(py, &error))
        });
        self.told = Some(begun.map(|sum| Sent::ToPeers { turn, numbers, sum }));
        Ok(())
    }

    /// The end of the step that has begun; `None`: the generation broke.
    pub(in crate::process) fn agree(
        &mut self,
        broke: Option<String>,
    ) -> Result<Option<Agreed>, Failure> {
        let told = self.told.take();
        let Some(begun) = self.begun.take() else {
            return Err(internal("no step has begun"));
        };
        let ended = match (broke, told) {
            (Some(why), _) => Err(Failure::PeerLost(why)),
            (None, Some(Ok(sent))) => self.end_of(&sent),
            (None, Some(Err(failure))) => Err(failure),
            (None, None) => Err(internal("it has told its peers nothing")),
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
                // There is no generation to lose: the step may be committed yet.
                self.begun = Some(begun);
                Ok(None)
            }
            Ok(Ended::NoWeight) => {
                self.lose("a rank has given job.commit a weight that is no number of at least 0");
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
        let layout = Layout::new(world.rank(), world.size());
        let read: Vec<f64> = Python::attach(|py| {
            let read = match sent {
                Sent::ToPeers { numbers, sum, .. } => {
                    let group = world.group().map(|group| group.object(py));
                    numbers.call_method1(py, "end", (group, sum))
                }
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

/// The mean of the losses of all ranks. `weight`: what they weigh together; 0 if each sample weighs the same.
fn mean_loss(end: &StepOutcome, batch: &Batch, weight: f64) -> f64 {
    let of_samples = batch.num_samples() as f64;
    end.loss_sum / if weight > 0.0 { weight } else { of_samples }
}
