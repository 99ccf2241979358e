//! A process as a member of generations: its next action and the result of the last one.

use std::time::{Duration, Instant};

use roundhouse_contract::Phase;
use roundhouse_elastic::{Action, Activity, Event, JoinWait, Machine, Outcome, Place};
use roundhouse_report::{Reporter, say_error};

use crate::checkpointing::Checkpointing;
use crate::failure::{Failure, Kept};
use crate::group::Rendezvous;
use crate::launch::Launch;
use crate::lobby::{Peers, poll_inputs};
use crate::local_copies::LocalCopies;
use crate::local_state::LocalState;
use crate::membership::POLL_INTERVAL;
use crate::signals::LeaveRequest;
use crate::world::World;

mod late_vote;
mod steps;

/// Interval at which a process in the lobby checks that its replica is whole.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Next action of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Todo {
    /// Form this generation: call [`Member::form`], then [`Member::apply`] with [`Event::Formed`].
    Form(Place),
    /// Do a step, or what is due in its place.
    Step,
    /// Leave without peers: drop everything that uses the process group, then call
    /// [`Member::save_alone`] and [`Member::apply`] with [`Event::SavedAlone`].
    SaveAlone,
    Exit(Outcome),
}

/// A process as a member of generations. The documentation of the crate has the order of its
/// actions.
#[derive(Debug)]
pub struct Member<'reporter, R: Rendezvous> {
    /// What this process has of the training's state, besides the bytes that are trained.
    pub local_state: LocalState,
    /// Reports about the process.
    pub reporter: &'reporter mut Reporter,
    pub(crate) machine: Machine,
    pub(crate) peers: Option<Peers<R>>,
    pub(crate) leave: LeaveRequest,
    pub(crate) join_wait: JoinWait,
    pub(crate) world: Option<World<R::Group>>,
    pub(crate) checkpointing: Option<Checkpointing>,
    /// Location of its state once it leaves, if known.
    pub(crate) kept: Option<Kept>,
    /// The generation of the last [`Todo`].
    generation: u64,
}

/// Inputs that control a process: its place in the generations, its peers, and the request to
/// leave.
#[derive(Debug)]
pub struct Control<R> {
    /// The state machine from [`crate::lobby::enter`].
    pub machine: Machine,
    /// Connections to the peers; `None` for a process that trains alone.
    pub peers: Option<Peers<R>>,
    /// The request to leave.
    pub leave: LeaveRequest,
}

impl<'reporter, R: Rendezvous> Member<'reporter, R> {
    /// Puts a prepared process in the lobby. `checkpointing` is present if it writes checkpoints.
    pub fn prepared(
        control: Control<R>,
        local_state: LocalState,
        checkpointing: Option<Checkpointing>,
        reporter: &'reporter mut Reporter,
    ) -> Self {
        let Control {
            mut machine,
            peers,
            leave,
        } = control;
        reporter.enter(Phase::Lobby);
        let copies = checkpointing.as_ref().and_then(|it| it.copies.as_ref());
        if copies.is_some_and(LocalCopies::can_save) {
            // If the process is asked to leave now, it saves the state of its copy.
            machine.apply(Event::HasState);
        }
        Self {
            local_state,
            reporter,
            machine,
            peers,
            leave,
            join_wait: JoinWait::default(),
            world: None,
            checkpointing,
            kept: None,
            generation: 0,
        }
    }

    /// Returns the next action. In the lobby it waits until there is one, and calls `check` every
    /// second, which fails if a process of this replica has ended.
    ///
    /// # Errors
    /// The error of `check`, unless this process leaves or exits.
    pub fn next_todo<E>(&mut self, mut check: impl FnMut() -> Result<(), E>) -> Result<Todo, E> {
        loop {
            if let Some(todo) = self.next_todo_within(CHECK_INTERVAL) {
                return Ok(todo);
            }
            if let Err(lost) = check() {
                // If both processes are leaving, the sibling may end first. That is not a loss.
                return match self.next_todo_within(Duration::ZERO) {
                    Some(todo @ (Todo::SaveAlone | Todo::Exit(_))) => Ok(todo),
                    Some(Todo::Form(_) | Todo::Step) | None => Err(lost),
                };
            }
        }
    }

    /// Returns the next action; `None` if there is none within the `span`.
    fn next_todo_within(&mut self, span: Duration) -> Option<Todo> {
        let begun = Instant::now();
        loop {
            self.poll_inputs();
            match self.machine.next() {
                Action::Wait => {
                    // A process without a place may hold copies for another worker.
                    if let Some(copies) = self.copies() {
                        copies.set_member(false);
                    }
                    if begun.elapsed() >= span {
                        return None;
                    }
                    std::thread::sleep(POLL_INTERVAL);
                }
                Action::Form(place) => {
                    self.generation = place.generation;
                    return Some(Todo::Form(place.clone()));
                }
                Action::Step(place) => {
                    self.generation = place.generation;
                    return Some(Todo::Step);
                }
                Action::SaveAlone => return Some(Todo::SaveAlone),
                Action::Exit(outcome) => return Some(Todo::Exit(outcome)),
            }
        }
    }

    /// Applies the result of an action.
    pub fn apply(&mut self, event: Event) {
        self.machine.apply(event);
        if matches!(event, Event::Boundary { .. }) && self.machine.next() == Action::Wait {
            if let Some(peers) = &self.peers {
                peers.interrupter.release();
            }
            self.reporter.enter(Phase::Lobby);
        }
    }

    /// Returns why a leaving process ends. Call it before [`Self::leave`].
    pub fn left(&mut self) -> Failure {
        let otherwise = if self.world.is_some() {
            Kept::Peers
        } else {
            Kept::Untrained
        };
        Failure::Left {
            step: self.local_state.position.step,
            kept: self.kept.take().unwrap_or(otherwise),
        }
    }

    /// Leaves the generation, which continues or has ended. Drop everything that uses the process
    /// group before this call.
    pub fn leave(&mut self) {
        if let Some(peers) = &self.peers {
            peers.interrupter.release();
        }
        if let Some(world) = self.world.take() {
            world.leave_at_the_end();
        }
    }

    /// Leaves the generation because this process fails and ends. Drop everything that uses the
    /// process group before this call.
    pub fn abandon(&mut self) {
        if let Some(peers) = &self.peers {
            peers.interrupter.release();
        }
        if let Some(world) = self.world.take() {
            world.abandon();
        }
    }

    /// Handles the failure of the generation: drops the uncommitted step and keeps everything else
    /// for the next generation. Drop everything that uses the process group before this call.
    pub fn lose(&mut self, why: &str) {
        say_error(why);
        self.reporter.generation_lost();
        if let Some(checkpointing) = &mut self.checkpointing {
            checkpointing.leave();
        }
        self.abandon();
        // Read again first: a process that was asked to leave does not wait.
        self.poll_inputs();
        self.machine.apply(Event::Fault {
            generation: self.generation,
        });
        if self.machine.next() == Action::Wait {
            self.reporter.enter(Phase::Stranded);
        }
    }

    /// The ranks of the current generation.
    ///
    /// # Errors
    /// [`Failure::Internal`] outside of a generation, which is a defect of the caller.
    pub fn world(&self) -> Result<&World<R::Group>, Failure> {
        let world = self.world.as_ref();
        world.ok_or_else(|| Failure::Internal("no generation is formed".to_owned()))
    }

    /// Reads the membership file and the request to leave.
    pub fn poll_inputs(&mut self) {
        poll_inputs(&mut self.machine, self.peers.as_mut(), &self.leave);
    }

    /// The longest step to expect in this generation; zero if unknown, and for a process that
    /// trains alone.
    #[must_use]
    pub fn longest_step(&self) -> Duration {
        let peers = self.peers.as_ref();
        peers.map_or_else(Default::default, |peers| peers.interrupter.longest_step())
    }

    /// Whether the process was asked to leave and has not left.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.machine.is_leaving()
    }

    /// The generation in which the process trains; 0 if there is none.
    #[must_use]
    pub fn current_generation(&self) -> u64 {
        self.machine.current_generation().unwrap_or_default()
    }

    /// Whether the process knows a newer generation than its own.
    pub(crate) const fn knows_newer_generation(&self) -> bool {
        self.machine.newest_generation() > self.generation
    }

    /// Whether to interrupt long work: the process was asked to leave some time ago, or it is alone
    /// and a newer generation has waited long enough.
    #[must_use]
    pub fn must_break_off(&self) -> bool {
        let has_waited = |peers: &Peers<R>| peers.interrupter.is_over();
        self.leave.is_pressing() || self.peers.as_ref().is_some_and(has_waited)
    }

    /// Enters a phase of a formed generation. Also informs the thread that watches the peers,
    /// because evaluations and saves have their own timeouts.
    pub fn enter(&mut self, phase: Phase) {
        let activity = match phase {
            Phase::Evaluating => Some(Activity::Evaluation),
            Phase::Saving => Some(Activity::Saving),
            Phase::Preparing
            | Phase::Lobby
            | Phase::Forming
            | Phase::Training
            | Phase::Stranded
            | Phase::SavingPart
            | Phase::Done => None,
        };
        if let (Some(activity), Some(peers)) = (activity, &self.peers) {
            peers.interrupter.enter(activity);
        }
        self.reporter.enter(phase);
    }

    /// Begins an evaluation, or other work beside steps, that may take `most`. Ranks that come
    /// meanwhile wait for it. Without a generation the process does the work alone: it is then not
    /// stranded, and needs no generation until [`Self::ends_work`].
    pub fn evaluates(&mut self, most: Duration) {
        if let Some(peers) = &self.peers {
            peers.rendezvous.publish_time_beside_steps(most);
        }
        self.enter(Phase::Evaluating);
    }

    /// Ends work that the process has done without a generation.
    pub fn ends_work(&mut self) {
        if self.world.is_none() && self.machine.next() == Action::Wait {
            self.reporter.enter(Phase::Stranded);
        }
    }

    /// Records on all ranks that steps follow after another activity.
    pub fn prepares_steps(&self) {
        if let Some(peers) = &self.peers {
            peers.interrupter.prepares_steps();
        }
    }
}

/// Number of workers that have this number of ranks.
#[must_use]
pub fn workers(launch: &Launch, num_ranks: u32) -> u32 {
    num_ranks / launch.procs_per_replica().max(1)
}
