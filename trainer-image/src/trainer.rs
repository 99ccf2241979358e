//! The training of one process: the driver of the state machine.

use std::time::Duration;

use roundhouse_contract::{Phase, TrainerConfig};
use roundhouse_elastic::ledger::{Head, Terms};
use roundhouse_elastic::{
    Action, Chain, Claim, Course, Door, Event, Machine, Mark, Origin, Outcome, RateSchedule,
    Scaling,
};

use crate::checkpoint::{Identity, NamedTensors};
use crate::config;
use crate::data::{self, Dataset};
use crate::device;
use crate::failure::Failure;
use crate::interrupt::Interrupter;
use crate::launch::Launch;
use crate::membership::{MembershipWatch, POLL_INTERVAL};
use crate::model::{self, Model};
use crate::optimizer::{self, Optimizer};
use crate::rendezvous::Rendezvous;
use crate::report::{Reporter, say_error};
use crate::signals::LeaveRequest;
use crate::strategy::DataParallel;

mod boundary;
mod door;
mod form;
mod keeping;
mod last_save;
mod lobby;
mod save;
mod step;
mod transfer;

use keeping::Keeping;
use lobby::{enter_lobby, look, meet_peers};

/// Everything a process needs to train, and how far it has come.
#[derive(Debug)]
pub struct Trainer<'reporter> {
    launch: Launch,
    config: TrainerConfig,
    data: Dataset,
    course: Course,
    rates: RateSchedule,
    scaling: Scaling,
    model: Box<dyn Model>,
    optimizer: Box<dyn Optimizer>,
    mark: Mark,
    /// Committed samples at the last evaluation; 0 before the first.
    evaluated: u64,
    /// Where the state comes from, and the last generation that it was a member's state of.
    origin: Origin,
    generation: u64,
    /// The end of the ledger, and where it and training were when the save in flight began.
    chain: Chain,
    saved: (Head, Mark),
    keeping: Option<Keeping>,
    replicas: Option<DataParallel>,
    /// What its last step took without its peers, and how unevenly that was split; zero before the first of a
    /// generation.
    last_step: (Duration, Option<f64>),
    machine: Machine,
    peers: Option<Peers>,
    door: Door,
    leave: LeaveRequest,
    reporter: &'reporter mut Reporter,
}

/// How a process that is not alone hears of its peers.
#[derive(Debug)]
struct Peers {
    watch: MembershipWatch,
    rendezvous: Rendezvous,
    interrupter: Interrupter,
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
        let device = device::own(launch.local_rank);
        let mut data = data::open(&config.data, &launch.data_dir)?;
        let course = course_of(&config, data.train.num_samples());
        let mut model = model::build(&config.model, &data.shape, config.seed)?;
        data.train.move_to(device)?;
        data.test.move_to(device)?;
        model.parameters_mut().move_to(device)?;
        let optimizer = optimizer::build(&config.optimizer, model.parameters())?;
        let scaling = Scaling::new(config.scale_batch, &course);
        let identity = Identity::of(&config, &course);
        let mut claim = Claim::FRESH;
        let mut mark = scaling.start();
        let mut head = Head::start(&identity.course);
        let mut keeping = None;
        if let Some(settings) = &launch.checkpoint {
            let mut state = NamedTensors::of(model.parameters(), optimizer.as_ref());
            let patience = launch.volume_patience;
            let (started, loaded) =
                Keeping::start(settings, patience, identity, &mut state, reporter)?;
            keeping = Some(started);
            if let Some(manifest) = loaded {
                claim = manifest.claim();
                mark = manifest.mark(mark.pace);
                head = manifest.ledger;
            }
        }
        let peers = watch.map(|watch| meet_peers(&launch, watch)).transpose()?;
        reporter.set_total_steps(mark.step + course.steps_to_come(&mark));
        Ok(Self {
            rates: RateSchedule::new(&config.schedule, config.optimizer.learning_rate, &course),
            launch,
            config,
            data,
            course,
            scaling,
            model,
            optimizer,
            mark,
            evaluated: 0,
            origin: claim.origin,
            generation: claim.generation,
            chain: Chain::from(head),
            saved: (head, mark),
            keeping,
            replicas: None,
            last_step: (Duration::ZERO, None),
            machine,
            peers,
            door: Door::default(),
            leave,
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
            let (generation, event) = match self.machine.next() {
                Action::Wait => {
                    std::thread::sleep(POLL_INTERVAL);
                    continue;
                }
                Action::Form(place) => {
                    let place = place.clone();
                    (place.generation, self.form(&place))
                }
                Action::Step(place) => (place.generation, self.step().map(Some)),
                Action::Exit(outcome) => return self.end(outcome),
            };
            match event {
                Ok(Some(event)) => self.machine.apply(event),
                // A newer generation came while this one was being formed.
                Ok(None) => {}
                Err(failure @ Failure::PeerLost(_)) => self.lose(generation, &failure),
                Err(failure) => return Err(failure),
            }
        }
    }

    /// The generation broke: its uncommitted step is dropped, all else is kept for the next one.
    fn lose(&mut self, generation: u64, failure: &Failure) {
        say_error(&failure.to_string());
        if let Some(peers) = &self.peers {
            peers.interrupter.release();
        }
        if let Some(keeping) = &mut self.keeping {
            keeping.leave();
        }
        if let Some(replicas) = self.replicas.take() {
            replicas.abandon();
        }
        // What was seen late counts: who was asked to leave does not wait.
        look(&mut self.machine, self.peers.as_mut(), &self.leave);
        self.machine.apply(Event::Fault { generation });
        if self.machine.next() == Action::Wait {
            self.reporter.enter(Phase::Stranded);
        }
    }

    fn end(self, outcome: Outcome) -> Result<(), Failure> {
        match outcome {
            Outcome::Done => {
                self.reporter.done();
                Ok(())
            }
            Outcome::Left => Err(Failure::Left {
                step: self.mark.step,
            }),
        }
    }
}

/// What all generations of a training have in common.
pub(crate) fn terms_of(config: &TrainerConfig, course: &Course) -> Terms {
    Terms {
        reference_replicas: config.scale_batch.map(|scale| scale.reference_replicas),
        ..Terms::of(course, config.seed)
    }
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
