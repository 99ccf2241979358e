//! A process as a member of generations: what it has to do next, and what became of it.

use roundhouse_contract::Phase;
use roundhouse_elastic::{Action, Activity, Event, JoinWait, Machine, Outcome, Place};
use roundhouse_report::{Reporter, say_error};

use crate::checkpointing::Checkpointing;
use crate::failure::{Failure, Kept};
use crate::group::Rendezvous;
use crate::launch::Launch;
use crate::lobby::{Peers, look};
use crate::local_state::LocalState;
use crate::membership::POLL_INTERVAL;
use crate::signals::LeaveRequest;
use crate::world::World;

mod steps;

/// What a process has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Todo {
    /// Form this generation: [`Member::form`], then tell [`Event::Formed`].
    Form(Place),
    /// Do a step, or what is due in its place.
    Step,
    /// Leave without peers: [`Member::save_alone`], then tell [`Event::SavedAlone`]. Whatever uses the world's group is
    /// to be dropped before.
    SaveAlone,
    /// End.
    Exit(Outcome),
}

/// A process as a member of generations. See the crate's documentation for what it does in which order.
#[derive(Debug)]
pub struct Member<'reporter, R: Rendezvous> {
    /// What it holds of the training's state, besides the bytes that are trained.
    pub local_state: LocalState,
    /// What it tells the outside.
    pub reporter: &'reporter mut Reporter,
    pub(crate) machine: Machine,
    pub(crate) peers: Option<Peers<R>>,
    pub(crate) leave: LeaveRequest,
    pub(crate) join_wait: JoinWait,
    pub(crate) world: Option<World<R::Group>>,
    pub(crate) checkpointing: Option<Checkpointing>,
    /// Where its state is once it leaves, if that is known.
    pub(crate) kept: Option<Kept>,
    /// The generation of the last [`Todo`].
    generation: u64,
}

/// What tells a process what to do: its place in the generations, its peers, and the request to leave.
#[derive(Debug)]
pub struct Control<R> {
    /// From [`crate::lobby::enter`].
    pub machine: Machine,
    /// Its peers; `None` for a process that trains alone.
    pub peers: Option<Peers<R>>,
    /// The request to leave.
    pub leave: LeaveRequest,
}

impl<'reporter, R: Rendezvous> Member<'reporter, R> {
    /// A process that is prepared: from now on it is in the lobby. `keeping` is there if it writes checkpoints.
    pub fn prepared(
        control: Control<R>,
        local_state: LocalState,
        checkpointing: Option<Checkpointing>,
        reporter: &'reporter mut Reporter,
    ) -> Self {
        let Control {
            machine,
            peers,
            leave,
        } = control;
        reporter.enter(Phase::Lobby);
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

    /// What to do next. In the lobby it waits until there is something.
    pub fn next_todo(&mut self) -> Todo {
        loop {
            self.look();
            match self.machine.next() {
                Action::Wait => std::thread::sleep(POLL_INTERVAL),
                Action::Form(place) => {
                    self.generation = place.generation;
                    return Todo::Form(place.clone());
                }
                Action::Step(place) => {
                    self.generation = place.generation;
                    return Todo::Step;
                }
                Action::SaveAlone => return Todo::SaveAlone,
                Action::Exit(outcome) => return Todo::Exit(outcome),
            }
        }
    }

    /// Tells what came of it.
    pub fn apply(&mut self, event: Event) {
        self.machine.apply(event);
        if matches!(event, Event::Boundary { .. }) && self.machine.next() == Action::Wait {
            if let Some(peers) = &self.peers {
                peers.interrupter.release();
            }
            self.reporter.enter(Phase::Lobby);
        }
    }

    /// Why a process ends that leaves, for before [`Self::leave`].
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

    /// This process has nothing more to do: it leaves its generation, which continues or is over. Whatever uses the world's
    /// group is to be dropped before.
    pub fn leave(&mut self) {
        if let Some(peers) = &self.peers {
            peers.interrupter.release();
        }
        if let Some(world) = self.world.take() {
            world.leave_at_the_end();
        }
    }

    /// The generation broke: its uncommitted step is dropped, all else is kept for the next one. Whatever uses the
    /// world's group is to be dropped before.
    pub fn lose(&mut self, why: &str) {
        say_error(why);
        self.reporter.generation_lost();
        if let Some(peers) = &self.peers {
            peers.interrupter.release();
        }
        if let Some(checkpointing) = &mut self.checkpointing {
            checkpointing.leave();
        }
        if let Some(world) = self.world.take() {
            world.abandon();
        }
        // What was seen late counts: a process that was asked to leave does not wait.
        self.look();
        self.machine.apply(Event::Fault {
            generation: self.generation,
        });
        if self.machine.next() == Action::Wait {
            self.reporter.enter(Phase::Stranded);
        }
    }

    /// The ranks of the generation that it trains in.
    ///
    /// # Errors
    /// There is none: a defect of the caller.
    pub fn world(&self) -> Result<&World<R::Group>, Failure> {
        let world = self.world.as_ref();
        world.ok_or_else(|| Failure::Internal("no world was formed".to_owned()))
    }

    /// Reads the membership file and the request to leave.
    pub fn look(&mut self) {
        look(&mut self.machine, self.peers.as_mut(), &self.leave);
    }

    /// The longest step that is to be expected in this generation; zero when nothing is known, and for a process that
    /// trains alone.
    #[must_use]
    pub fn longest_step(&self) -> std::time::Duration {
        let peers = self.peers.as_ref();
        peers.map_or_else(Default::default, |peers| peers.interrupter.longest_step())
    }

    /// Whether it was asked to leave and has not left yet.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.machine.is_leaving()
    }

    /// The generation that it trains in; 0 if it trains in none.
    #[must_use]
    pub fn current_generation(&self) -> u64 {
        self.machine.current_generation().unwrap_or_default()
    }

    /// Whether it has heard of a generation after the one that it forms or trains in.
    pub(crate) const fn knows_newer_generation(&self) -> bool {
        self.machine.newest_generation() > self.generation
    }

    /// Whether something that takes long is to be broken off: it was asked to leave a while ago, or it is alone and
    /// a newer generation has waited long enough.
    #[must_use]
    pub fn must_break_off(&self) -> bool {
        let has_waited = |peers: &Peers<R>| peers.interrupter.is_over();
        self.leave.is_pressing() || self.peers.as_ref().is_some_and(has_waited)
    }

    /// Enters a phase of a generation that is formed. The thread that watches the peers is told, since evaluations
    /// and saves have a patience of their own; steps tell of themselves.
    pub fn enter(&mut self, phase: Phase) {
        let activity = match phase {
            Phase::Evaluating => Some(Activity::Evaluation),
            Phase::Saving => Some(Activity::Saving),
            Phase::Preparing
            | Phase::Lobby
            | Phase::Forming
            | Phase::Training
            | Phase::Stranded
            | Phase::Done => None,
        };
        if let (Some(activity), Some(peers)) = (activity, &self.peers) {
            peers.interrupter.enter(activity);
        }
        self.reporter.enter(phase);
    }

    /// What the ranks did beside steps is over on all of them: steps follow.
    pub fn prepares_steps(&self) {
        if let Some(peers) = &self.peers {
            peers.interrupter.prepares_steps();
        }
    }

    /// The ranks, and at the same time what sees a request to leave while they compute.
    ///
    /// # Errors
    /// There are none: a defect of the caller.
    pub fn world_and_leave_watch(
        &mut self,
    ) -> Result<(&World<R::Group>, LeaveWatch<'_, R>), Failure> {
        let world = self.world.as_ref();
        let world = world.ok_or_else(|| Failure::Internal("no world was formed".to_owned()))?;
        let leave_watch = LeaveWatch {
            machine: &mut self.machine,
            peers: self.peers.as_mut(),
            leave: &self.leave,
        };
        Ok((world, leave_watch))
    }
}

/// Sees a request to leave in the middle of a step.
#[derive(Debug)]
pub struct LeaveWatch<'a, R> {
    machine: &'a mut Machine,
    peers: Option<&'a mut Peers<R>>,
    leave: &'a LeaveRequest,
}

impl<R> LeaveWatch<'_, R> {
    /// Whether this process was asked to leave by now. A request that is heard before the end of a step does not wait
    /// for the end of the next one.
    pub fn is_leaving(&mut self) -> bool {
        look(self.machine, self.peers.as_deref_mut(), self.leave);
        self.machine.is_leaving()
    }
}

/// How many workers a world of so many ranks has.
#[must_use]
pub const fn workers(launch: &Launch, num_ranks: u32) -> u32 {
    let per_worker = launch.local_world_size;
    num_ranks / if per_worker == 0 { 1 } else { per_worker }
}
