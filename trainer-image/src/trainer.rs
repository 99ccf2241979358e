//! The training of one process: the driver of the state machine, and the step.

use std::time::Instant;

use roundhouse_contract::membership::{Action as Instruction, Incarnation, Master, Membership};
use roundhouse_contract::{Phase, TrainerConfig};
use roundhouse_elastic::machine::Verdict;
use roundhouse_elastic::{
    Action, Batch, Course, Event, Machine, Outcome, Permutation, Place, RateSchedule,
};
use tch::Tensor;

use crate::config;
use crate::data::{self, Dataset};
use crate::evaluate::evaluate;
use crate::failure::Failure;
use crate::launch::{Launch, Source};
use crate::membership::{MembershipWatch, POLL_INTERVAL};
use crate::model::{self, Model};
use crate::optimizer::{self, Optimizer};
use crate::rendezvous::Rendezvous;
use crate::report::{Reporter, StepReport, say_error};
use crate::sections::{Section, Sections};
use crate::signals::LeaveRequest;
use crate::strategy::DataParallel;
use crate::weights;
use crate::world::World;

/// Everything a process needs to train, and how far it has come.
#[derive(Debug)]
pub struct Trainer<'reporter> {
    launch: Launch,
    config: TrainerConfig,
    data: Dataset,
    course: Course,
    rates: RateSchedule,
    model: Box<dyn Model>,
    optimizer: Box<dyn Optimizer>,
    committed_steps: u64,
    replicas: Option<DataParallel>,
    machine: Machine,
    peers: Option<Peers>,
    leave: LeaveRequest,
    lost: Option<Failure>,
    reporter: &'reporter mut Reporter,
}

/// How a process that is not alone hears of its peers.
#[derive(Debug)]
struct Peers {
    watch: MembershipWatch,
    rendezvous: Rendezvous,
}

impl<'reporter> Trainer<'reporter> {
    /// Loads everything that needs no peer.
    ///
    /// # Errors
    /// Configuration or data are wrong, or the rendezvous port is taken.
    pub fn prepare(
        launch: Launch,
        leave: LeaveRequest,
        reporter: &'reporter mut Reporter,
    ) -> Result<Self, Failure> {
        // First of all, before anything takes time: what is newer than this is for this process.
        let (machine, watch) = enter_lobby(&launch);
        let config = config::read(&launch.config_file)?;
        let data = data::open(&config.data, &launch.data_dir)?;
        let course = course_of(&config, data.train.num_samples());
        let model = model::build(&config.model, &data.shape, config.seed)?;
        let optimizer = optimizer::build(&config.optimizer, model.parameters())?;
        let peers = watch.map(|watch| meet_peers(&launch, watch)).transpose()?;
        reporter.set_total_steps(course.total_steps());
        Ok(Self {
            rates: RateSchedule::new(&config.schedule, config.optimizer.learning_rate, &course),
            launch,
            config,
            data,
            course,
            model,
            optimizer,
            committed_steps: 0,
            replicas: None,
            machine,
            peers,
            leave,
            lost: None,
            reporter,
        })
    }

    /// Trains to the end.
    ///
    /// # Errors
    /// Why it ended before.
    pub fn run(mut self) -> Result<(), Failure> {
        self.reporter.enter(Phase::Lobby);
        loop {
            look(&mut self.machine, self.peers.as_mut(), &self.leave);
            let event = match self.machine.next() {
                Action::Wait => {
                    std::thread::sleep(POLL_INTERVAL);
                    continue;
                }
                Action::Form(place) => {
                    let place = place.clone();
                    self.form(&place)
                }
                Action::Step(_) => self.step().map(Some),
                Action::Exit(outcome) => return self.end(outcome),
            };
            match event {
                Ok(Some(event)) => self.machine.apply(event),
                // A newer generation came while this one was being formed.
                Ok(None) => {}
                Err(failure @ Failure::PeerLost(_)) => {
                    say_error(&failure.to_string());
                    self.lost = Some(failure);
                    self.machine.apply(Event::Fault);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// The same script whoever it is for, a first generation or a later one: meet, agree who has
    /// the state, send it to those who lack it, hook the gradients.
    fn form(&mut self, place: &Place) -> Result<Option<Event>, Failure> {
        self.replicas = None;
        self.reporter.enter(Phase::Forming);
        let world = match &mut self.peers {
            None => World::alone(),
            Some(peers) => {
                let Peers { watch, rendezvous } = peers;
                let (machine, leave) = (&mut self.machine, &self.leave);
                let is_pointless = || {
                    listen(machine, watch, leave);
                    machine.supersedes(place)
                };
                match rendezvous.form(place, is_pointless)? {
                    Some(world) => world,
                    None => return Ok(None),
                }
            }
        };
        let source = world.agree_on_state(self.committed_steps)?;
        if source.must_send {
            let sender = u32::try_from(source.rank).unwrap_or_default();
            world.broadcast(&mut self.state(), sender)?;
        }
        self.committed_steps = source.step;
        self.replicas = Some(DataParallel::new(
            world,
            self.model.parameters(),
            &self.config.ddp,
            self.config.micro_batch_size,
        )?);
        self.reporter.join(place, self.committed_steps);
        self.reporter.enter(Phase::Training);
        Ok(Some(Event::Formed))
    }

    /// One optimizer step of the whole world. Until the update every error leaves the weights as
    /// they were; the update itself is local and waits for nobody.
    fn step(&mut self) -> Result<Event, Failure> {
        let Some(batch) = self.course.next_batch(self.committed_steps) else {
            self.evaluate()?;
            return Ok(Event::Finished);
        };
        let Some(replicas) = &mut self.replicas else {
            return Err(Failure::Internal(
                "a step before its world was formed".to_owned(),
            ));
        };
        let started = Instant::now();
        let mut sections = Sections::default();
        let committed_samples = self.course.committed_samples(self.committed_steps);
        let learning_rate = self.rates.rate(committed_samples);
        let order = Permutation::new(self.course.num_samples(), self.config.seed, batch.epoch);
        let model = self.model.as_mut();

        let local_loss =
            replicas.gradients(model, &self.data.train, &order, &batch, &mut sections)?;
        let gradient_norm =
            sections.time(Section::Optimizer, || model.parameters().gradient_norm())?;
        let is_finite = local_loss.is_finite() && gradient_norm.is_finite();
        let newest_seen = self.machine.newest_generation();
        let end = sections.time(Section::Communication, || {
            replicas
                .world()
                .end_step(local_loss, is_finite, newest_seen)
        })?;
        let step = self.committed_steps + 1;
        if !end.agreement.all_finite {
            return Err(Failure::Diverged {
                step,
                loss: local_loss / batch.num_samples() as f64,
                gradient_norm,
            });
        }
        sections.time(Section::Optimizer, || {
            self.optimizer
                .step(model.parameters_mut(), learning_rate, step)
        })?;
        self.committed_steps = step;

        self.reporter.commit(&StepReport {
            step,
            epoch: self.course.position(step).epoch,
            num_samples: batch.num_samples(),
            loss: end.loss_sum / batch.num_samples() as f64,
            gradient_norm,
            learning_rate,
            duration: started.elapsed(),
            sections,
        });
        if self.is_evaluation_due(&batch) {
            self.evaluate()?;
        }
        Ok(Event::StepCommitted {
            agreed_generation: end.agreement.newest_generation,
        })
    }

    /// At the end of every so many epochs; the last of all is done when no batch is left.
    fn is_evaluation_due(&self, batch: &Batch) -> bool {
        let every = u64::from(self.config.eval.every_epochs);
        batch.ends_epoch
            && (batch.epoch + 1).checked_rem(every) == Some(0)
            && self.committed_steps < self.course.total_steps()
    }

    fn evaluate(&mut self) -> Result<(), Failure> {
        let Some(replicas) = &self.replicas else {
            return Err(Failure::Internal(
                "an evaluation before its world was formed".to_owned(),
            ));
        };
        self.reporter.enter(Phase::Evaluating);
        let evaluation = evaluate(
            self.model.as_ref(),
            &self.data.test,
            replicas.world(),
            self.config.micro_batch_size,
        )?;
        self.reporter.evaluated(&evaluation);
        self.reporter.enter(Phase::Training);
        Ok(())
    }

    fn end(mut self, outcome: Outcome) -> Result<(), Failure> {
        match outcome {
            Outcome::Done => {
                let rank = self
                    .replicas
                    .as_ref()
                    .map(|replicas| replicas.world().rank());
                if let (Some(path), Some(0)) = (&self.launch.save_weights, rank) {
                    weights::save(path, self.model.parameters())?;
                }
                self.reporter.done();
                Ok(())
            }
            Outcome::Left => Err(Failure::Left {
                step: self.committed_steps,
            }),
            Outcome::PeerLost => {
                // Gloo's destructors would wait for collectives that will not end.
                std::mem::forget(self.replicas.take());
                Err(self.lost.take().unwrap_or_else(|| {
                    Failure::Internal("a generation broke without a cause".to_owned())
                }))
            }
        }
    }

    /// Handles of all tensors that a rank without the state has to be sent.
    fn state(&self) -> Vec<Tensor> {
        let parameters = self.model.parameters().tensors().iter();
        parameters
            .chain(self.optimizer.state())
            .map(Tensor::shallow_clone)
            .collect()
    }
}

/// Tells the machine what has happened outside.
fn look(machine: &mut Machine, peers: Option<&mut Peers>, leave: &LeaveRequest) {
    match peers {
        Some(peers) => listen(machine, &mut peers.watch, leave),
        None if leave.is_made() => machine.apply(Event::LeaveRequested),
        None => {}
    }
}

fn listen(machine: &mut Machine, watch: &mut MembershipWatch, leave: &LeaveRequest) {
    if leave.is_made() {
        machine.apply(Event::LeaveRequested);
    }
    if let Some(document) = watch.poll()
        && machine.see(&document) == Verdict::Invalid
    {
        say_error(&format!(
            "membership has no place for this process: {document:?}"
        ));
    }
}

fn enter_lobby(launch: &Launch) -> (Machine, Option<MembershipWatch>) {
    match &launch.source {
        Source::Membership { file, .. } => {
            let (watch, seen_at_start) = MembershipWatch::start(file);
            (Machine::new(launch.local_rank, seen_at_start), Some(watch))
        }
        Source::Alone => {
            let mut machine = Machine::new(0, 0);
            machine.see(&world_of_one());
            (machine, None)
        }
    }
}

fn meet_peers(launch: &Launch, watch: MembershipWatch) -> Result<Peers, Failure> {
    let Source::Membership {
        file: _,
        own_address,
        rendezvous_port,
    } = &launch.source
    else {
        return Err(Failure::Internal("a process alone has no peers".to_owned()));
    };
    let rendezvous = Rendezvous::open(
        *own_address,
        *rendezvous_port,
        launch.local_rank,
        launch.collective_timeout,
    )?;
    Ok(Peers { watch, rendezvous })
}

fn course_of(config: &TrainerConfig, num_samples: u64) -> Course {
    let global_batch = u64::from(config.global_batch_size);
    match (config.steps, config.epochs) {
        (Some(steps), _) => Course::of_steps(num_samples, global_batch, steps),
        (None, epochs) => {
            Course::of_epochs(num_samples, global_batch, u64::from(epochs.unwrap_or(1)))
        }
    }
}

/// What the membership file would say to a process that trains alone.
fn world_of_one() -> Membership {
    Membership {
        generation: 1,
        action: Instruction::Join,
        node_rank: 0,
        nodes: 1,
        procs_per_worker: 1,
        master: Master {
            address: String::new(),
            port: 0,
        },
        members: String::new(),
        incarnation: Incarnation {
            pod_uid: String::new(),
            restarts: 0,
        },
        issued_at: String::new(),
    }
}
