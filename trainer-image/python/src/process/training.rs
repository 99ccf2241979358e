//! The training of one process, from the lobby to its end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use roundhouse_contract::Phase;
use roundhouse_contract::environment::CollectiveTimeouts;
use roundhouse_elastic::ledger::Head;
use roundhouse_elastic::{Batch, Chain, Event, Outcome, Place, Scaling, course};
use roundhouse_member::checkpoint::Identity;
use roundhouse_member::faults::{self, Point};
use roundhouse_member::launch::Source;
use roundhouse_member::lobby::Peers;
use roundhouse_member::member::{Control, Todo};
use roundhouse_member::rendezvous::StoreRendezvous;
use roundhouse_member::report::{Evaluation, Reporter, StepReport};
use roundhouse_member::sections::{Section, Sections};
use roundhouse_member::world::{Standing, StepEnd};
use roundhouse_member::{Failure, Held, Keeping, Launch, Member, State as _};

use super::{Started, internal};
use crate::failure::told;
use crate::group::Begun;
use crate::network::PyNetwork;
use crate::sampler::Course;
use crate::state::PyState;

/// What names a training.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) model: String,
    pub(super) optimizer: String,
    pub(super) settings: BTreeMap<String, String>,
}

/// What the script tells of a step that is committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) skipped: bool,
    pub(super) gradient_norm: f64,
    pub(super) learning_rate: f64,
    /// Seconds of each section.
    pub(super) spent: [f64; 5],
}

/// What a rank has told the others at the end of a step.
#[derive(Debug)]
enum Sent {
    /// The sum of this number is on its way.
    ToPeers { turn: u64, sum: Begun },
    /// There is nobody to tell: the sum of its losses.
    Alone(f64),
}

/// The training of one process.
#[derive(Debug)]
pub(super) struct Training {
    member: Member<'static, StoreRendezvous<PyNetwork>>,
    state: PyState,
    /// Gives up all that uses the group of the present generation.
    leave_group: Py<PyAny>,
    course: course::Course,
    scaling: Scaling,
    timeouts: CollectiveTimeouts,
    /// The step that has begun, and what this rank brings to its end.
    begun: Option<(Batch, Standing)>,
    /// What this rank has told its peers at its end, or why it cannot.
    told: Option<Result<Sent, Failure>>,
    /// What all have said at its end.
    agreed: Option<StepEnd>,
    /// What the last step of this generation took without its peers.
    own_time: Duration,
    /// When it ended; at first when the generation was formed.
    ended: Instant,
}

impl Training {
    /// All that needs no peer; from now on the process is in the lobby.
    pub(super) fn prepare(
        launch: &Launch,
        started: Started,
        course: &Course,
        named: Named,
        network: PyNetwork,
        state: PyState,
        leave_group: Py<PyAny>,
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
        let Course {
            course,
            terms,
            scaling,
        } = course;
        let identity = Identity {
            model,
            optimizer,
            course: *terms,
            settings,
        };
        let mut held = Held::fresh(scaling.start(), Chain::from(Head::start(terms)));
        let keeping = Keeping::prepare(launch, identity, state.table()?, reporter)?;
        if let Some(manifest) = keeping.as_ref().and_then(Keeping::found) {
            held.stand_for(manifest);
        }
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
            Peers::meet(file, watch, rendezvous)
        };
        let peers = watch.map(meet).transpose()?;
        let total_steps = held.mark.step + course.steps_to_come(&held.mark);
        reporter.set_total_steps(total_steps);
        let control = Control {
            machine,
            peers,
            leave,
        };
        Ok(Self {
            member: Member::prepared(control, held, keeping, reporter),
            state,
            leave_group,
            course: *course,
            scaling: *scaling,
            timeouts: launch.timeouts,
            begun: None,
            told: None,
            agreed: None,
            own_time: Duration::ZERO,
            ended: Instant::now(),
        })
    }

    /// Forms generations until a step is due; false when all are committed.
    pub(super) fn advance(&mut self) -> Result<bool, Failure> {
        loop {
            match self.member.next_todo() {
                Todo::Form(place) => match self.form(&place) {
                    Ok(true) => self.member.apply(Event::Formed),
                    // A newer generation came while this one was being formed.
                    Ok(false) => {}
                    Err(Failure::PeerLost(why)) => self.lose(&why),
                    Err(failure) => return Err(failure),
                },
                Todo::Step => return self.begin(),
                Todo::Exit(Outcome::Left) => {
                    let step = self.member.held.mark.step;
                    self.member.leave();
                    return Err(Failure::Left { step });
                }
                Todo::Exit(Outcome::Done) => return Ok(false),
            }
        }
    }

    fn form(&mut self, place: &Place) -> Result<bool, Failure> {
        (self.begun, self.told) = (None, None);
        self.own_time = Duration::ZERO;
        let left = Python::attach(|py| self.leave_group.call0(py));
        left.map_err(|error| internal(&told(&error)))?;
        let Some(origin) = self.member.form(place, &mut self.state)? else {
            return Ok(false);
        };
        self.state.settle()?;
        let world = self.member.world()?;
        if let Some(group) = world.group() {
            let expected = self.member.longest_step();
            group.set_timeout(self.timeouts.of_first_step(expected));
        }
        // All have the same mark now.
        let mark = self.scaling.go_on(self.member.held.mark, 1);
        self.member.held.mark = mark;
        let total_steps = mark.step + self.course.steps_to_come(&mark);
        self.member.reporter.set_total_steps(total_steps);
        self.member.begin_training(place, origin, &self.state)?;
        self.member.reporter.enter(Phase::Training);
        self.ended = Instant::now();
        Ok(true)
    }

    fn begin(&mut self) -> Result<bool, Failure> {
        let mark = self.member.held.mark;
        let Some(batch) = self.course.batch_at(&mark) else {
            return Ok(false);
        };
        if self.begun.is_none() {
            let mut standing = self.member.begin_step()?;
            standing.own_time = self.own_time;
            self.begun = Some((batch, standing));
        }
        Ok(true)
    }

    pub(super) fn group(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let world = self.member.world().ok()?;
        world.group().map(|group| group.object(py))
    }

    pub(super) fn place(&self) -> Result<(u64, u32, u32, u64, u64), Failure> {
        let world = self.member.world()?;
        let mark = &self.member.held.mark;
        let generation = self.member.current_generation();
        Ok((
            generation,
            world.rank(),
            world.size(),
            mark.step,
            mark.samples,
        ))
    }

    /// This rank tells its peers what it brings to the end of the step that has begun. It does not wait for them.
    pub(super) fn tell(&mut self, loss_sum: f64, finite: bool) -> Result<(), Failure> {
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
            None => Ok(Sent::Alone(loss_sum)),
            Some(group) => {
                let numbers = world.packing().pack(standing, loss_sum);
                let (turn, numbers) = world.with_witness(&numbers);
                let sum = group.begin_sum(numbers);
                sum.map(|sum| Sent::ToPeers { turn, sum })
            }
        });
        Ok(())
    }

    /// The end of the step that has begun; `None`: the generation broke. `finite`: whether the gradients are, as far as
    /// they are the same on all ranks.
    pub(super) fn agree(
        &mut self,
        finite: bool,
        broke: Option<String>,
    ) -> Result<Option<(f64, bool)>, Failure> {
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
            Ok(mut end) => {
                end.agreement.all_finite &= finite;
                let loss = end.loss_sum / batch.num_samples() as f64;
                let finite = end.agreement.all_finite;
                let rank = self.member.world()?.rank();
                self.agreed = Some(end);
                self.begun = Some((batch, standing));
                faults::point(Point::Update, rank, self.member.held.mark.step + 1);
                Ok(Some((loss, finite)))
            }
            Err(Failure::PeerLost(why)) => {
                self.lose(&why);
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    fn end_of(&mut self, sent: Sent, standing: &Standing) -> Result<StepEnd, Failure> {
        match sent {
            Sent::Alone(loss_sum) => self.member.end_step(loss_sum, standing),
            Sent::ToPeers { turn, sum } => {
                let world = self.member.world()?;
                let group = world.group();
                let group = group.ok_or_else(|| internal("a world of one has no peers"))?;
                let sums = group.end_sum(sum)?;
                self.member.end_step_heard(turn, &sums)
            }
        }
    }

    /// The step counts, and is told.
    pub(super) fn conclude(&mut self, told: Told) -> Result<(), Failure> {
        let (Some((batch, _)), Some(end)) = (self.begun.take(), self.agreed.take()) else {
            return Err(internal("a step whose end was not agreed on"));
        };
        let Told {
            skipped,
            gradient_norm,
            learning_rate,
            spent,
        } = told;
        faults::point(Point::Commit, self.member.world()?.rank(), batch.step);
        let loss = end.loss_sum / batch.num_samples() as f64;
        self.member.count(&batch, skipped);
        self.member.note(&batch, loss, &end.saving);
        let mut sections = Sections::default();
        for (section, seconds) in Section::ALL.into_iter().zip(spent) {
            let spent = Duration::try_from_secs_f64(seconds);
            sections.add(section, spent.unwrap_or_default());
        }
        self.member.reporter.compare(&end.own_seconds, None);
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
        self.ended = now;
        let longest = self.member.longest_step();
        if let Some(group) = self.member.world()?.group() {
            group.set_timeout(self.timeouts.of_step(longest));
        }
        let result = self.act(&end);
        self.lost_or(result).map(|_| ())
    }

    /// Does what the end of the last step asks for.
    fn act(&mut self, end: &StepEnd) -> Result<(), Failure> {
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

    /// `None`: the generation broke, now or before.
    pub(super) fn sum(&mut self, values: &[f64]) -> Result<Option<Vec<f64>>, Failure> {
        let Ok(world) = self.member.world() else {
            return Ok(None);
        };
        let sums = world.sum_signed(values);
        self.lost_or(sums)
    }

    /// Committed samples at the last evaluation; 0 before the first. All ranks of a generation have the same.
    pub(super) const fn evaluated(&self) -> u64 {
        self.member.held.evaluated
    }

    /// The state was evaluated on all ranks, with the same result: it is reported, and the end of the evaluation is a
    /// boundary, as a step's end is. False: the generation broke after that; the state need not be evaluated again.
    pub(super) fn evaluated_as(&mut self, evaluation: &Evaluation) -> Result<bool, Failure> {
        (self.begun, self.told) = (None, None);
        self.member.reporter.evaluated(evaluation);
        self.member.held.evaluated = self.member.held.mark.samples;
        if self.course.batch_at(&self.member.held.mark).is_none() {
            // Only the last save is left to do, which needs no newcomer.
            return Ok(true);
        }
        self.member.look();
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
    pub(super) fn begin_evaluation(&mut self, counts: bool) -> Result<(), Failure> {
        self.member.held.evaluation_counts = counts;
        (self.begun, self.told) = (None, None);
        self.member.enter(Phase::Evaluating);
        if let Some(group) = self.member.world()?.group() {
            group.set_timeout(self.timeouts.beside_steps(None));
        }
        Ok(())
    }

    /// The state is saved, on all ranks; false: the generation broke, now or before.
    pub(super) fn finish(&mut self) -> Result<bool, Failure> {
        let Ok(world) = self.member.world() else {
            return Ok(false);
        };
        if let Some(group) = world.group() {
            group.set_timeout(self.timeouts.beside_steps(None));
        }
        let saved = self.member.save_result(&self.state);
        let saved = saved.and_then(|()| self.member.world()?.barrier());
        Ok(self.lost_or(saved)?.is_some())
    }

    /// A peer that is lost costs the generation, and no more.
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
        self.told = None;
        self.agreed = None;
        self.member.lose(why);
    }

    /// This process ends: its peers, if it has any, get an error at once.
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
