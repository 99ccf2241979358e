//! A process as a member of generations: what it has to do next, and what became of it.

use roundhouse_contract::Phase;
use roundhouse_elastic::{Action, Activity, Door, Event, Machine, Outcome, Place};

use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::held::Held;
use crate::keeping::Keeping;
use crate::launch::Launch;
use crate::lobby::{Peers, look};
use crate::membership::POLL_INTERVAL;
use crate::report::{Reporter, say_error};
use crate::signals::LeaveRequest;
use crate::world::{Saving, Standing, StepEnd, World};

/// What a process has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Todo {
    /// Form this generation: [`Member::form`], then tell [`Event::Formed`].
    Form(Place),
    /// Do a step, or what is due in its place.
    Step,
    /// End.
    Exit(Outcome),
}

/// A process as a member of generations. See the crate's documentation for what it does in which order.
#[derive(Debug)]
pub struct Member<'reporter, R: Rendezvous> {
    /// What it holds of the training's state, besides the bytes that are trained.
    pub held: Held,
    /// What it tells the outside.
    pub reporter: &'reporter mut Reporter,
    pub(crate) machine: Machine,
    pub(crate) peers: Option<Peers<R>>,
    pub(crate) leave: LeaveRequest,
    pub(crate) door: Door,
    pub(crate) world: Option<World<R::Group>>,
    pub(crate) keeping: Option<Keeping>,
    /// The generation of the last [`Todo`].
    generation: u64,
}

/// How a process comes to hear of generations.
#[derive(Debug)]
pub struct Hearing<R> {
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
        hearing: Hearing<R>,
        held: Held,
        keeping: Option<Keeping>,
        reporter: &'reporter mut Reporter,
    ) -> Self {
        let Hearing {
            machine,
            peers,
            leave,
        } = hearing;
        reporter.enter(Phase::Lobby);
        Self {
            held,
            reporter,
            machine,
            peers,
            leave,
            door: Door::default(),
            world: None,
            keeping,
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
                Action::Exit(outcome) => return Todo::Exit(outcome),
            }
        }
    }

    /// Tells what came of it.
    pub fn apply(&mut self, event: Event) {
        self.machine.apply(event);
    }

    /// The generation broke: its uncommitted step is dropped, all else is kept for the next one. Whatever uses the
    /// world's group is to be dropped before.
    pub fn lose(&mut self, why: &str) {
        say_error(why);
        if let Some(peers) = &self.peers {
            peers.interrupter.release();
        }
        if let Some(keeping) = &mut self.keeping {
            keeping.leave();
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

    /// A step begins: what this rank will bring to its end, as far as it is known now.
    ///
    /// # Errors
    /// [`Failure::Fenced`].
    pub fn begin_step(&mut self) -> Result<Standing, Failure> {
        if let Some(peers) = &self.peers {
            peers.interrupter.step_begins();
            let longest = peers.interrupter.longest_step();
            peers.rendezvous.tell_longest_step(longest);
        }
        let saving = self.saving()?;
        Ok(Standing {
            finite: true,
            leaving: self.machine.is_leaving(),
            newest_seen: self.newest_for_all(),
            saving,
            own_time: std::time::Duration::ZERO,
        })
    }

    /// The small collective at the end of each step; see [`World::end_step`].
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn end_step(&mut self, local_loss_sum: f64, own: &Standing) -> Result<StepEnd, Failure> {
        let end = self.world()?.end_step(local_loss_sum, own)?;
        if let Some(peers) = &self.peers {
            peers.interrupter.step_ends();
        }
        Ok(end)
    }

    /// The end of a step whose numbers have come with the gradients; see [`StepEnd::of_ranks`]. `finite`: whether the
    /// gradients are, which are the same on all ranks.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when they are not the numbers of all ranks.
    pub fn end_step_with(&mut self, ranks: &[Vec<f64>], finite: bool) -> Result<StepEnd, Failure> {
        let mut end = StepEnd::of_ranks(ranks).ok_or_else(|| {
            Failure::PeerLost("what came with the gradients is not of all ranks".to_owned())
        })?;
        end.agreement.all_finite &= finite;
        if let Some(peers) = &self.peers {
            peers.interrupter.step_ends();
        }
        Ok(end)
    }

    /// The end of a step whose sums have come from a device; see [`World::packing`].
    ///
    /// # Errors
    /// As [`Self::end_of`].
    pub fn end_step_of(&mut self, sums: &[f64]) -> Result<StepEnd, Failure> {
        let end = self.end_of(sums)?;
        if let Some(peers) = &self.peers {
            peers.interrupter.step_ends();
        }
        Ok(end)
    }

    /// The same for a step whose end is read late, after an error in a later one. How long that took says nothing of
    /// how long steps take.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank has dropped the step before, or the sums are not those of this world.
    pub fn end_of(&self, sums: &[f64]) -> Result<StepEnd, Failure> {
        let packing = self.world()?.packing();
        if packing.has_dropped(sums) {
            return Err(Failure::PeerLost(
                "a rank has not taken part in the step before".to_owned(),
            ));
        }
        packing.unpack(sums).ok_or_else(|| {
            Failure::PeerLost("the end of a step is that of another world".to_owned())
        })
    }

    /// The ranks, and at the same time what hears of the outside while they compute.
    ///
    /// # Errors
    /// There are none: a defect of the caller.
    pub fn world_and_ears(&mut self) -> Result<(&World<R::Group>, Ears<'_, R>), Failure> {
        let world = self.world.as_ref();
        let world = world.ok_or_else(|| Failure::Internal("no world was formed".to_owned()))?;
        let ears = Ears {
            machine: &mut self.machine,
            peers: self.peers.as_mut(),
            leave: &self.leave,
        };
        Ok((world, ears))
    }

    fn saving(&mut self) -> Result<Saving, Failure> {
        let generation = self.held.generation();
        let Some(keeping) = &mut self.keeping else {
            return Ok(Saving::default());
        };
        keeping.hear(generation, self.reporter)?;
        let is_time = keeping.saver.is_time();
        Ok(keeping.standing(is_time))
    }
}

/// Hears of the outside in the middle of a step.
#[derive(Debug)]
pub struct Ears<'a, R> {
    machine: &'a mut Machine,
    peers: Option<&'a mut Peers<R>>,
    leave: &'a LeaveRequest,
}

impl<R> Ears<'_, R> {
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
