//! The training of one process, from the lobby to its end.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use roundhouse_contract::environment::CollectiveTimeouts;
use roundhouse_contract::{Phase, paths};
use roundhouse_elastic::ledger::Head;
use roundhouse_elastic::{Batch, Chain, DataSchedule, Event, Outcome, Place, Scaling};
use roundhouse_member::checkpoint::Identity;
use roundhouse_member::group::Abort;
use roundhouse_member::launch::Source;
use roundhouse_member::lobby::Peers;
use roundhouse_member::member::{Control, Todo};
use roundhouse_member::rendezvous::StoreRendezvous;
use roundhouse_member::world::{RankVote, StepOutcome};
use roundhouse_member::{Checkpointing, Failure, Launch, LocalState, Member, State as _};
use roundhouse_report::Reporter;

pub(super) use self::generations::Generations;
use self::step::Sent;
pub(super) use self::step::{Agreed, CommitReport};
use super::{Started, internal};
use crate::network::PyNetwork;
use crate::sampler::SampleSchedule;
use crate::state::PyState;

mod edges;
mod generations;
mod numbers;
mod step;

/// Why a process loses a generation in which it has lost no rank itself.
const LOST_IN_REPLICA: &str = "another process of this replica has lost a rank";

/// The names that identify a training.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) model: String,
    pub(super) optimizer: String,
    pub(super) settings: BTreeMap<String, String>,
}

/// The training of one process.
#[derive(Debug)]
pub(super) struct Training {
    member: Member<'static, StoreRendezvous<PyNetwork>>,
    state: PyState,
    generations: Arc<Generations>,
    data_schedule: DataSchedule,
    scaling: Scaling,
    timeouts: CollectiveTimeouts,
    /// The current step, and this rank's vote at its end.
    begun: Option<(Batch, RankVote)>,
    /// The vote that this rank has sent, or why it could not be sent.
    sent: Option<Result<Sent, Failure>>,
    /// The outcome of the vote, and the total weight of the losses.
    agreed: Option<(StepOutcome, f64)>,
    /// The outcome of a committed step while the rest of its body may still run.
    ended_step: Option<StepOutcome>,
    /// The time that this rank's work beside steps may take, while it does such work.
    waits: Option<Duration>,
    /// Compute time of this rank in the last step of this generation, without waits for peers.
    own_time: Duration,
    /// Unevenness of that step's shares.
    unevenness: Option<f64>,
    /// When that step ended; before the first step, when the generation formed.
    ended: Instant,
}

impl Training {
    /// Prepares everything that needs no peer. Afterwards the process is in the lobby.
    pub(super) fn prepare(
        launch: &Launch,
        started: Started,
        schedule: &SampleSchedule,
        named: Named,
        network: PyNetwork,
        state: PyState,
        generations: Generations,
    ) -> Result<Self, Failure> {
        let Started {
            reporter,
            machine,
            watch,
            leave,
        } = started;
        let Named {
            model,
            optimizer,
            settings,
        } = named;
        let SampleSchedule {
            data_schedule,
            identity: ledger,
            scaling,
        } = schedule;
        let identity = Identity {
            model,
            optimizer,
            ledger: *ledger,
            settings,
        };
        let mut local_state = LocalState::fresh(scaling.start(), Chain::from(Head::start(ledger)));
        let checkpointing = Checkpointing::prepare(launch, identity, state.table()?, reporter)?;
        if let Some(manifest) = checkpointing.as_ref().and_then(Checkpointing::found) {
            local_state.stand_for(manifest);
        }
        let generations = Arc::new(generations);
        let meet = |watch| {
            let Source::Membership {
                file,
                own_address,
                rendezvous_port,
            } = &launch.source
            else {
                return Err(internal("a process alone has no peers"));
            };
            let rendezvous = StoreRendezvous::open(
                network,
                *own_address,
                *rendezvous_port,
                launch.local_rank,
                launch.timeouts,
            )?;
            let peers = Peers::meet(file, watch, rendezvous, &leave)?;
            if let (Some(_), Some(file)) = (&launch.replica_pods, &launch.replica_file) {
                let replica: Weak<dyn Abort> = Arc::downgrade(&generations) as _;
                let over = paths::end_of_life(file);
                peers.interrupter.guard_replica(vec![replica], over);
            }
            Ok(peers)
        };
        let peers = watch.map(meet).transpose()?;
        let total_steps =
            local_state.position.step + data_schedule.steps_to_come(&local_state.position);
        reporter.set_total_steps(total_steps);
        let control = Control {
            machine,
            peers,
            leave,
        };
        Ok(Self {
            member: Member::prepared(control, local_state, checkpointing, reporter),
            state,
            generations,
            data_schedule: *data_schedule,
            scaling: *scaling,
            timeouts: launch.timeouts,
            begun: None,
            sent: None,
            agreed: None,
            ended_step: None,
            waits: None,
            own_time: Duration::ZERO,
            unevenness: None,
            ended: Instant::now(),
        })
    }

    /// Forms generations until a step is due. False when all steps are committed. Call
    /// [`Self::end_body`] before it.
    pub(super) fn advance(&mut self) -> Result<bool, Failure> {
        loop {
            match self.next_todo()? {
                Todo::Form(place) => self.form_in_replica(&place)?,
                Todo::Step => return self.begin(),
                Todo::SaveAlone => {
                    self.generations.leave()?;
                    self.member.save_alone(&mut self.state);
                    self.member.apply(Event::SavedAlone);
                }
                Todo::Exit(Outcome::Left) => {
                    let left = self.member.left();
                    self.member.leave();
                    return Err(left);
                }
                Todo::Exit(Outcome::Done) => return Ok(false),
            }
        }
    }

    /// The next action. In the lobby it waits until there is one.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a process of this replica is lost meanwhile.
    fn next_todo(&mut self) -> Result<Todo, Failure> {
        if self.waits.take().is_some() {
            // An exception has ended this work.
            self.member.reporter.is_patient(Duration::ZERO);
            self.member.ends_work();
        }
        let generations = &self.generations;
        self.member.next_todo(|| generations.check_replica())
    }

    /// Forms a generation, which counts only if it has formed in all processes of this replica.
    fn form_in_replica(&mut self, place: &Place) -> Result<(), Failure> {
        let formed = match self.form(place) {
            Err(Failure::PeerLost(why)) => Err(why),
            formed => Ok(formed?),
        };
        let has_formed = self
            .generations
            .formed(place.generation, formed == Ok(true))?;
        match formed {
            Ok(true) if has_formed => self.member.apply(Event::Formed),
            Ok(true) => self.lose(LOST_IN_REPLICA),
            // A newer generation arrived while this one was forming.
            Ok(false) => {}
            Err(why) => self.lose(&why),
        }
        Ok(())
    }

    fn form(&mut self, place: &Place) -> Result<bool, Failure> {
        (self.begun, self.sent) = (None, None);
        self.own_time = Duration::ZERO;
        self.generations.leave()?;
        let Some(origin) = self.member.form(place, &mut self.state)? else {
            return Ok(false);
        };
        self.state.settle()?;
        let world = self.member.world()?;
        if let Some(group) = world.group() {
            let expected = self.member.longest_step();
            group.set_timeout(self.timeouts.of_first_step(expected));
        }
        // All ranks have the same position now.
        let position = self.scaling.rescale(self.member.local_state.position, 1);
        self.member.local_state.position = position;
        let total_steps = position.step + self.data_schedule.steps_to_come(&position);
        self.member.reporter.set_total_steps(total_steps);
        self.member.begin_training(place, origin, &self.state)?;
        self.member.reporter.enter(Phase::Training);
        self.ended = Instant::now();
        Ok(true)
    }

    fn begin(&mut self) -> Result<bool, Failure> {
        let position = self.member.local_state.position;
        let Some(batch) = self.data_schedule.batch_at(&position) else {
            return Ok(false);
        };
        if self.begun.is_none() {
            let mut vote = self.member.begin_step()?;
            vote.own_time = self.own_time;
            self.begun = Some((batch, vote));
        }
        Ok(true)
    }

    pub(super) fn group(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let world = self.member.world().ok()?;
        world.group().map(|group| group.object(py))
    }

    pub(super) fn place(&self) -> Result<(u64, u32, u32, u64, u64), Failure> {
        let world = self.member.world()?;
        let position = &self.member.local_state.position;
        let generation = self.member.current_generation();
        Ok((
            generation,
            world.rank(),
            world.size(),
            position.step,
            position.samples,
        ))
    }

    /// Turns a lost peer into the end of the generation and `None`.
    fn lost_or<T>(&mut self, result: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Failure::PeerLost(why)) => {
                self.lose(&why);
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    pub(super) fn lose(&mut self, why: &str) {
        self.begun = None;
        self.sent = None;
        self.agreed = None;
        // A committed step whose body has not ended.
        self.member.local_state.is_cut_short |= self.ended_step.take().is_some();
        self.member.reporter.is_patient(Duration::ZERO);
        self.member.lose(why);
        if let Some(span) = self.waits {
            self.works_alone(span);
        }
    }

    /// Saves this process' part of the state: see [`Member::save_part`].
    pub(super) fn save_part(&mut self) {
        if self.ended_step.is_some() {
            // The body of the loop may have run in part.
            return;
        }
        self.member.save_part(&self.state);
    }

    /// Must be called when this process ends, so that its peers get an error at once.
    pub(super) fn give_up(&mut self) {
        if self.member.world().is_ok() {
            self.lose("this process ends");
        }
    }

    pub(super) fn done(mut self) {
        self.member.apply(Event::Finished);
        self.member.leave();
        self.member.reporter.done();
    }

    pub(super) fn reporter(&mut self) -> &mut Reporter {
        self.member.reporter
    }
}
