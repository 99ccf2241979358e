//! The training loop of one process. The member decides the next task (form a generation, step,
//! save, exit), and the trainer runs it.

use std::time::{Duration, Instant};

use roundhouse_contract::{Phase, TrainerConfig};
use roundhouse_elastic::ledger::LedgerIdentity;
use roundhouse_elastic::{Batch, DataSchedule, Event, Outcome, Permutation, RateSchedule, Scaling};
use roundhouse_member::member::Todo;
use roundhouse_member::{Launch, Member};

use crate::failure::Failure;
use crate::gradients::Inputs;
use crate::rendezvous::StoreRendezvous;
use crate::replica::Replica;
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
mod in_doubt;
mod numerics;
mod prepare;
mod step;
mod step_vote;

/// The task, its data and its optimizer.
#[derive(Debug)]
struct Trained {
    config: TrainerConfig,
    task: Box<dyn Task>,
    train: Box<dyn Source>,
    test: Option<Box<dyn Source>>,
    update: Box<dyn Update>,
    /// Handles of all trained tensors.
    tensors: Tensors,
}

impl Trained {
    /// The inputs of the passes over a batch.
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

/// The data schedule, and the learning rates.
#[derive(Debug)]
struct Plan {
    data_schedule: DataSchedule,
    rates: RateSchedule,
    scaling: Scaling,
    identity: LedgerIdentity,
}

/// Timing of the last step whose end is known.
#[derive(Clone, Copy, Debug, Default)]
struct LastStep {
    own_time: Duration,
    unevenness: Option<f64>,
    /// The current timeout of this generation's collectives.
    timeout: Option<Duration>,
    /// When the host read the end of the step; `None`: this generation has completed no step yet.
    ended: Option<Instant>,
}

/// The training of one process.
#[derive(Debug)]
pub struct Trainer<'reporter> {
    launch: Launch,
    work: Trained,
    plan: Plan,
    member: Member<'reporter, StoreRendezvous>,
    /// The processes of this worker, if they hold one copy of the state together.
    replica: Option<Replica>,
    /// Synchronizes the gradients of the current generation.
    sync: Option<Box<dyn Sync>>,
    /// The packing of gradients, equal in every generation. `None` if gradients have no buckets.
    layout: Option<Vec<Vec<usize>>>,
    last_step: LastStep,
    /// The longest evaluation of this generation so far.
    longest_evaluation: Option<Duration>,
    /// Whether the host or the device decides that a step is committed.
    commit: Commit,
    /// If the device commits steps: the launched step whose end the host has not read.
    pending: Option<ahead::Pending>,
    /// Number of steps whose update has begun and that the position does not count yet.
    uncounted_updates: u32,
    tracer: Tracer,
    /// Description of the data, until rank 0 has logged it.
    data: Option<String>,
    host_syncs: roundhouse_c10d::HostSyncs,
}

impl Trainer<'_> {
    /// Trains until the training is complete.
    ///
    /// # Errors
    /// The reason why the process ends before training is complete.
    pub fn run(mut self) -> Result<(), Failure> {
        let result = self.train();
        // After an interrupted update the weights are those of no step.
        if let Err(failure) = &result
            && failure.is_replica_lost()
            && self.uncounted_updates == 0
        {
            self.member.save_part(&self.work.tensors);
        }
        result
    }

    fn train(&mut self) -> Result<(), Failure> {
        loop {
            let mut generation = self.member.current_generation();
            let event = match self.next_todo()? {
                Todo::Form(place) => {
                    generation = place.generation;
                    self.tracer.steps_end();
                    self.form(&place)
                        .map_err(|failure| failure.on_rank(place.rank))
                }
                Todo::Step => self.step(),
                Todo::SaveAlone => {
                    self.leave_group();
                    self.member.save_alone(&mut self.work.tensors);
                    Ok(Some(Event::SavedAlone))
                }
                Todo::Exit(outcome) => return self.end(outcome),
            };
            match event {
                Ok(Some(event)) => self.member.apply(event),
                // A newer generation arrived while this one was forming, or the loop continues with
                // a step.
                Ok(None) => {}
                Err(failure) if failure.is_peer_lost() => {
                    // Drop the gradient hooks before the group that they call.
                    self.leave_group();
                    if let Some(replica) = &mut self.replica {
                        replica.fails(generation);
                    }
                    self.member.lose(&failure.to_string());
                }
                Err(failure) => {
                    self.abandon();
                    return Err(failure);
                }
            }
        }
    }

    /// The next action. In the lobby it waits until there is one.
    fn next_todo(&mut self) -> Result<Todo, Failure> {
        let replica = &self.replica;
        let check = || replica.as_ref().map_or(Ok(()), Replica::check);
        self.member.next_todo(check)
    }

    /// Aborts all collectives that still wait for peers. Otherwise their threads keep the process
    /// alive until the collectives time out.
    fn abandon(&mut self) {
        if let Some(replica) = &self.replica {
            replica.abort();
        }
        self.leave_group();
        self.member.abandon();
    }

    /// Drops everything that calls the process group of the current generation.
    fn leave_group(&mut self) {
        self.sync = None;
        self.work.task.train_among(None);
    }

    fn end(&mut self, outcome: Outcome) -> Result<(), Failure> {
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

    /// Reports a phase of the current generation.
    fn enter(&mut self, phase: Phase) {
        self.member.enter(phase);
    }
}
