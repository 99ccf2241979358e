//! The state of one process in a scenario, as the member crate keeps it.

use roundhouse_elastic::saving::Carried;
use roundhouse_elastic::{Claim, Head, Origin};

/// A process that runs, or the place of a dead one.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) is_alive: bool,
    /// Whether the operator and the peers can reach the process.
    pub(crate) is_reached: bool,
    pub(crate) origin: Origin,
    pub(crate) head: Head,
    /// The state that it was receiving when the connection was lost.
    pub(crate) torn: Option<Claim>,
    /// The last generation of which it was a member.
    pub(crate) generation: u64,
    /// The save of which it writes a part.
    pub(crate) carried: Option<Carried>,
}

impl Process {
    /// Starts a process. `found` is the newest checkpoint.
    pub(crate) fn start(start: Head, found: Option<Head>) -> Self {
        Self {
            is_alive: true,
            is_reached: true,
            origin: found.map_or(Origin::Fresh, |_| Origin::Loaded),
            head: found.unwrap_or(start),
            torn: None,
            generation: found.map_or(0, |head| head.generation),
            carried: None,
        }
    }

    pub(crate) fn claim(&self) -> Claim {
        match (self.torn, self.origin) {
            (Some(torn), _) => torn,
            (None, Origin::Fresh) => Claim::FRESH,
            (None, origin) => Claim::of(origin, &self.head),
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.is_alive && self.torn.is_none() && self.origin == Origin::Live
    }

    /// The first byte of another state overwrites the state of this process.
    pub(crate) fn begin_to_receive(&mut self, sent: &Claim) {
        if sent.origin != Origin::Loaded || self.origin != Origin::Loaded {
            self.torn = Some(sent.torn());
        }
    }

    pub(crate) fn stand_for(&mut self, head: Head) {
        (self.origin, self.head, self.torn) = (Origin::Loaded, head, None);
    }

    pub(crate) fn go_live(&mut self, head: Head, generation: u64) {
        (self.origin, self.head, self.torn) = (Origin::Live, head, None);
        self.generation = generation;
    }
}
