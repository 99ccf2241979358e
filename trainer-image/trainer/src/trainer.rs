//! The training of one process: what it trains, driven by what it is told as a member of generations.

use std::time::{Duration, Instant};

use roundhouse_contract::{Phase, TrainerConfig};
use roundhouse_elastic::ledger::RunIdentity;
use roundhouse_elastic::{Batch, DataSchedule, Event, Outcome, Permutation, RateSchedule, Scaling};
use roundhouse_member::member::Todo;
use roundhouse_member::{Launch, Member};

use crate::failure::Failure;
use crate::gradients::Inputs;
use crate::rendezvous::StoreRendezvous;
use crate::source::Source;
use crate::state::Tensors;
use crate::sync::{Commit, Sync};
use crate::task::Task;
use crate::tracing::Tracer;
use crate::update::Update;

mod ahead;
mod boundary;
mod end;
mod form;
mod host_syncs;
mod identity;
mod numerics;
mod prepare;
mod step;
mod step_vote;

/// What is trained.
#[derive(Debug)]
struct Trained {
    config: TrainerConfig,
    task: Box<dyn Task>,
    train: Box<dyn Source>,
    test: Option<Box<dyn Source>>,
    update: Box<dyn Update>,
    /// Handles of all tensors that are trained.
    tensors: Tensors,
}

impl Trained {
    /// What the passes over a batch are made of.
    fn inputs<'a>(&'a mut self, batch: &'a Batch, order: &'a Permutation) -> Inputs<'a> {
        Inputs {
            task: self.task.as_mut(),
            source: self.train.as_mut(),
            order,
            batch,
            next: None,
            seed: self.config.seed,
            precision: self.config.precision,
            loss_factor: None,
        }
    }
}

/// Which samples belong to which step, and at which rate they are trained on.
#[derive(Debug)]
struct Plan {
    data_schedule: DataSchedule,
    rates: RateSchedule,
    scaling: Scaling,
    run: RunIdentity,
}

/// What the last step whose end is known took without its peers, and how unevenly that was split.
#[derive(Clone, Copy, Debug, Default)]
struct LastStep {
    own_time: Duration,
    unevenness: Option<f64>,
    /// How long the collectives of this generation wait since then.
    timeout: Option<Duration>,
    /// When its end was known; `None`: this generation has had no step yet.
    ended: Option<Instant>,
}

/// The training of one process.
#[derive(Debug)]
pub struct Trainer<'reporter> {
    launch: Launch,
    work: Trained,
    plan: Plan,
    member: Member<'reporter, StoreRendezvous>,
    /// What synchronizes the gradients of the present generation.
    sync: Option<Box<dyn Sync>>,
    /// How gradients are packed in every generation, unless they are summed in another way.
    layout: Option<Vec<Vec<usize>>>,
    /// Nothing before the first step of a generation.
    last_step: LastStep,
    /// Of this generation.
    longest_evaluation: Option<Duration>,
    /// Who decides that a step is committed.
    commit: Commit,
    /// The step that was launched and whose end is not known, where the device decides.
    pending: Option<ahead::Pending>,
    tracer: Tracer,
    /// What the data turned out to be, until rank 0 has logged it.
    data: Option<String>,
    host_syncs: roundhouse_c10d::HostSyncs,
}

impl Trainer<'_> {
    /// Trains to the end.
    ///
    /// # Errors
    /// Why it ended before.
    pub fn run(mut self) -> Result<(), Failure> {
        loop {
            let event = match self.member.next_todo() {
                Todo::Form(place) => {
                    self.tracer.steps_end();
                    self.form(&place)
                        .map_err(|failure| failure.on_rank(place.rank))
                }
                Todo::Step => self.step(),
                Todo::SaveAlone => {
                    self.leave_group();
                    self.member.save_alone(&self.work.tensors);
                    Ok(Some(Event::SavedAlone))
                }
                Todo::Exit(outcome) => return self.end(outcome),
            };
            match event {
                Ok(Some(event)) => self.member.apply(event),
                // A newer generation came while this one was being formed, or steps continue.
                Ok(None) => {}
                Err(failure) if failure.is_peer_lost() => {
                    // First the hooks on the gradients, then what they would call.
                    self.leave_group();
                    self.member.lose(&failure.to_string());
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Gives up all that would call the group of the present generation.
    fn leave_group(&mut self) {
        self.sync = None;
        self.work.task.train_among(None);
    }

    fn end(mut self, outcome: Outcome) -> Result<(), Failure> {
        self.leave_group();
        let left = self.member.left();
        self.member.leave();
        match outcome {
            Outcome::Done => {
                self.member.reporter.done();
                Ok(())
            }
            Outcome::Left => Err(left.into()),
        }
    }

    /// Enters a phase of a generation that is formed.
    fn enter(&mut self, phase: Phase) {
        self.member.enter(phase);
    }
}
