//! The state machine of one process: lobby, forming, training, end.
//!
//! The driver calls [`Machine::next`] for the next action, performs it, and reports the result with
//! [`Machine::apply`]. It passes every membership document that it reads to [`Machine::see`]. A
//! newer generation interrupts forming at once, and training at a step boundary on which all ranks
//! agree. If a generation breaks, the process survives and waits for the next one with its state.
//! The machine has no clock, no file and no process group.
//!
//! A process that has a state leaves in one of two ways. If all ranks of its generation agree on a
//! newer one, the remaining ranks have its state, and it ends at once. In every other case it first
//! saves its state alone, because it may be the last process that has it.

use roundhouse_contract::membership::{Action as Instruction, Membership};

mod interface;

pub use interface::{Action, Event, Outcome, Place, Verdict};

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Before the first generation, or between two generations.
    Lobby,
    Forming(Place),
    Training(Place),
    /// The process leaves, and may be the only one that has its state.
    SavingAlone,
    Ended(Outcome),
}

/// Instruction of the newest accepted document.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Assignment {
    Join(Place),
    Leave,
}

/// The state machine of one process.
#[derive(Clone, Debug)]
pub struct Machine {
    local_rank: u32,
    state: State,
    newest_generation: u64,
    assignment: Option<Assignment>,
    leave_requested: bool,
    /// Whether the process has a state that others may lack. The ranks that sent it may be gone,
    /// even before the generation formed.
    has_state: bool,
}

impl Machine {
    /// Creates the machine of a process that enters the lobby. `seen_at_start` is the generation
    /// in the membership file at the start, 0 if none. That generation and all before it belong
    /// to an earlier process.
    #[must_use]
    pub const fn new(local_rank: u32, seen_at_start: u64) -> Self {
        Self {
            local_rank,
            state: State::Lobby,
            newest_generation: seen_at_start,
            assignment: None,
            leave_requested: false,
            has_state: false,
        }
    }

    /// Returns the next action of the driver.
    #[must_use]
    pub const fn next(&self) -> Action<'_> {
        match &self.state {
            State::Lobby => Action::Wait,
            State::Forming(place) => Action::Form(place),
            State::Training(place) => Action::Step(place),
            State::SavingAlone => Action::SaveAlone,
            State::Ended(outcome) => Action::Exit(*outcome),
        }
    }

    /// Newest generation seen, including the one found at the start.
    #[must_use]
    pub const fn newest_generation(&self) -> u64 {
        self.newest_generation
    }

    /// The generation in which the process trains, if it trains.
    #[must_use]
    pub const fn current_generation(&self) -> Option<u64> {
        match &self.state {
            State::Training(place) => Some(place.generation),
            State::Lobby | State::Forming(_) | State::SavingAlone | State::Ended(_) => None,
        }
    }

    /// The place in a newer generation that the process will take after its present one.
    #[must_use]
    pub const fn pending(&self) -> Option<&Place> {
        match (&self.state, &self.assignment) {
            (State::Training(now), Some(Assignment::Join(next)))
                if next.generation > now.generation && !self.leave_requested =>
            {
                Some(next)
            }
            _ => None,
        }
    }

    /// Whether the process was asked to leave and has not left yet.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.leave_requested
    }

    /// Whether forming `place` has become pointless.
    #[must_use]
    pub fn supersedes(&self, place: &Place) -> bool {
        self.leave_requested || self.newest_generation > place.generation
    }

    /// Takes in a document of the membership file.
    pub fn see(&mut self, document: &Membership) -> Verdict {
        if document.generation <= self.newest_generation {
            return Verdict::Old;
        }
        let Some(assignment) = self.assignment_of(document) else {
            return Verdict::Invalid;
        };
        self.newest_generation = document.generation;
        self.assignment = Some(assignment);
        if matches!(self.state, State::Lobby | State::Forming(_)) {
            self.follow_assignment();
        }
        Verdict::Accepted
    }

    /// Takes in an event. Events that do not fit the state change nothing.
    pub fn apply(&mut self, event: Event) {
        match (event, &self.state) {
            (Event::LeaveRequested, State::Lobby | State::Forming(_)) => {
                self.leave_requested = true;
                self.leave_alone();
            }
            (Event::LeaveRequested, State::Training(_)) => self.leave_requested = true,
            (Event::HasState, State::Lobby | State::Forming(_)) => self.has_state = true,
            (Event::Formed, State::Forming(place)) => {
                self.has_state = true;
                self.state = State::Training(place.clone());
            }
            (
                Event::Boundary {
                    agreed_generation,
                    all_leave,
                },
                State::Training(place),
            ) => {
                if all_leave {
                    // The ranks have saved together, unless one of them was lost meanwhile.
                    self.leave_alone();
                } else if agreed_generation > place.generation {
                    // The document of this process may arrive later than those of others.
                    self.change(place.generation);
                }
            }
            (Event::Finished, State::Training(_)) => self.end(Outcome::Done),
            (Event::Fault { generation }, State::Forming(place) | State::Training(place)) => {
                if generation == place.generation {
                    self.recover(generation);
                }
            }
            (Event::SavedAlone, State::SavingAlone) => self.end(Outcome::Left),
            (_, State::Ended(_) | State::SavingAlone)
            | (Event::SavedAlone, State::Lobby | State::Forming(_) | State::Training(_))
            | (Event::Fault { .. }, State::Lobby)
            | (Event::HasState, State::Training(_))
            | (Event::Formed, State::Lobby | State::Training(_))
            | (Event::Boundary { .. } | Event::Finished, State::Lobby | State::Forming(_)) => {}
        }
    }

    /// All ranks of the generation change to a newer one. Those that stay have the
    /// state of this process.
    fn change(&mut self, current: u64) {
        let is_known = self.newest_generation > current;
        if self.leave_requested || is_known && self.assignment == Some(Assignment::Leave) {
            self.end(Outcome::Left);
        } else {
            self.recover(current);
        }
    }

    /// The generation is over: the process joins the next one if it is known, or waits for it.
    fn recover(&mut self, current: u64) {
        if self.leave_requested {
            self.leave_alone();
        } else if self.newest_generation > current {
            self.follow_assignment();
        } else {
            self.state = State::Lobby;
        }
    }

    fn follow_assignment(&mut self) {
        match self.assignment.clone() {
            Some(Assignment::Join(place)) => self.state = State::Forming(place),
            Some(Assignment::Leave) => self.leave_alone(),
            None => {}
        }
    }

    /// Ends the process without peers: no peer is known to have its state.
    fn leave_alone(&mut self) {
        if self.has_state {
            self.state = State::SavingAlone;
        } else {
            self.end(Outcome::Left);
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.state = State::Ended(outcome);
    }

    fn assignment_of(&self, document: &Membership) -> Option<Assignment> {
        match document.action {
            Instruction::Leave => Some(Assignment::Leave),
            Instruction::Join => {
                let world_size = document.nodes.checked_mul(document.procs_per_worker)?;
                let has_place = document.node_rank < document.nodes
                    && self.local_rank < document.procs_per_worker;
                has_place.then(|| {
                    Assignment::Join(Place {
                        generation: document.generation,
                        rank: document.rank(self.local_rank),
                        world_size,
                        procs_per_worker: document.procs_per_worker,
                        master: document.master.clone(),
                        nonce: document.nonce.clone(),
                    })
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
