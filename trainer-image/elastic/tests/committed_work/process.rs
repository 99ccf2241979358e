//! One process: what it holds, as `Held` and the sharing of states in the member crate keep it.

use roundhouse_elastic::saving::Carried;
use roundhouse_elastic::{Claim, Head, Origin};

/// A process, or the place of one that is dead.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) is_alive: bool,
    /// Whether operator and peers reach it.
    pub(crate) is_reached: bool,
    pub(crate) origin: Origin,
    pub(crate) head: Head,
    /// Which state it was receiving when it was cut off.
    pub(crate) torn: Option<Claim>,
    /// The last generation that it was a member of.
    pub(crate) generation: u64,
    /// The save of which it has a part.
    pub(crate) carried: Option<Carried>,
}

impl Process {
    /// A process that starts: `found` is the newest checkpoint.
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

    /// A byte of its state is overwritten.
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
