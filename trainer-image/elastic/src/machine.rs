//! The life of one process: lobby, forming, training, end.
//!
//! The driver asks [`Machine::next`] what to do, does it, and tells what came of it with
//! [`Machine::apply`]; whenever it reads the membership file it shows it to [`Machine::see`].
//! A newer generation interrupts forming at once and training at a step boundary on which all
//! ranks agree. A generation that breaks costs nobody the process: it waits for the next one, with
//! its state. The machine holds no clock, no file and no group.
//!
//! A process that has a state and is to leave does so in one of two ways. If all ranks of its generation agree on a
//! newer one, the ranks that stay have its state, and it ends at once. In every other case it saves its state first,
//! alone: it may be the last process that has it.

use roundhouse_contract::membership::{Action as Instruction, Membership};

mod words;

pub use words::{Action, Event, Outcome, Place, Verdict};

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Before its first generation, or between two.
    Lobby,
    Forming(Place),
    Training(Place),
    /// It leaves, and may be the only process that has its state.
    SavingAlone,
    Ended(Outcome),
}

/// What the newest accepted document says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Summons {
    Join(Place),
    Leave,
}

/// The state machine of one process.
#[derive(Clone, Debug)]
pub struct Machine {
    local_rank: u32,
    state: State,
    newest_generation: u64,
    summons: Option<Summons>,
    leave_requested: bool,
    /// Whether it has a state that others may not have. It may have come from ranks that are gone, and the generation in
    /// which it came need not have formed.
    has_state: bool,
}

impl Machine {
    /// A process that enters the lobby. `seen_at_start` is the generation found in the membership
    /// file at the start, 0 if none: it and all before it belong to somebody else's life.
    #[must_use]
    pub const fn new(local_rank: u32, seen_at_start: u64) -> Self {
        Self {
            local_rank,
            state: State::Lobby,
            newest_generation: seen_at_start,
            summons: None,
            leave_requested: false,
            has_state: false,
        }
    }

    /// What to do now.
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

    /// The newest generation seen, the one found at the start included.
    #[must_use]
    pub const fn newest_generation(&self) -> u64 {
        self.newest_generation
    }

    /// The generation that it trains in, if it does.
    #[must_use]
    pub const fn current_generation(&self) -> Option<u64> {
        match &self.state {
            State::Training(place) => Some(place.generation),
            State::Lobby | State::Forming(_) | State::SavingAlone | State::Ended(_) => None,
        }
    }

    /// The place in a newer generation that awaits it while it trains, if one does.
    #[must_use]
    pub const fn pending(&self) -> Option<&Place> {
        match (&self.state, &self.summons) {
            (State::Training(now), Some(Summons::Join(next)))
                if next.generation > now.generation && !self.leave_requested =>
            {
                Some(next)
            }
            _ => None,
        }
    }

    /// Whether it was asked to leave and has not left yet.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.leave_requested
    }

    /// Whether forming `place` is pointless by now.
    #[must_use]
    pub fn supersedes(&self, place: &Place) -> bool {
        self.leave_requested || self.newest_generation > place.generation
    }

    /// Shows a document that the membership file holds.
    pub fn see(&mut self, document: &Membership) -> Verdict {
        if document.generation <= self.newest_generation {
            return Verdict::Old;
        }
        let Some(summons) = self.summons_of(document) else {
            return Verdict::Invalid;
        };
        self.newest_generation = document.generation;
        self.summons = Some(summons);
        if matches!(self.state, State::Lobby | State::Forming(_)) {
            self.answer_summons();
        }
        Verdict::Accepted
    }

    /// Tells what happened. Events that the state does not expect change nothing.
    pub fn apply(&mut self, event: Event) {
        match (event, &self.state) {
            (Event::LeaveRequested, State::Lobby | State::Forming(_)) => {
                self.leave_requested = true;
                self.leave_alone();
            }
            (Event::LeaveRequested, State::Training(_)) => self.leave_requested = true,
            (Event::HasState, State::Forming(_)) => self.has_state = true,
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
                    // They have saved together, unless one of them was lost meanwhile.
                    self.leave_alone();
                } else if agreed_generation > place.generation {
                    // Its own document may come later than those of others.
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
            | (Event::HasState | Event::Formed, State::Lobby | State::Training(_))
            | (Event::Boundary { .. } | Event::Finished, State::Lobby | State::Forming(_)) => {}
        }
    }

    /// All ranks of the generation change to a newer one. Those that stay have the state of this process.
    fn change(&mut self, current: u64) {
        let is_known = self.newest_generation > current;
        if self.leave_requested || is_known && self.summons == Some(Summons::Leave) {
            self.end(Outcome::Left);
        } else {
            self.recover(current);
        }
    }

    /// The generation is over: on to the next one, if it is known already, or wait for it.
    fn recover(&mut self, current: u64) {
        if self.leave_requested {
            self.leave_alone();
        } else if self.newest_generation > current {
            self.answer_summons();
        } else {
            self.state = State::Lobby;
        }
    }

    fn answer_summons(&mut self) {
        match self.summons.clone() {
            Some(Summons::Join(place)) => self.state = State::Forming(place),
            Some(Summons::Leave) => self.leave_alone(),
            None => {}
        }
    }

    /// No peer is known to have the state of this process.
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

    fn summons_of(&self, document: &Membership) -> Option<Summons> {
        match document.action {
            Instruction::Leave => Some(Summons::Leave),
            Instruction::Join => {
                let world_size = document.nodes.checked_mul(document.procs_per_worker)?;
                let has_place = document.node_rank < document.nodes
                    && self.local_rank < document.procs_per_worker;
                has_place.then(|| {
                    Summons::Join(Place {
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
