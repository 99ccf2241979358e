//! Decides for each request and each watch event whether a fault affects it. The decision is pure
//! and depends on a seed.

use std::collections::HashMap;
use std::time::Duration;

use super::api_call::{ApiCall, LEASES, Verb};
use super::fault::{Fault, Refusal};

/// Refusals of an overloaded or broken API server.
const REFUSALS: [Refusal; 4] = [
    (429, "TooManyRequests", Some(1)),
    (500, "InternalError", None),
    (503, "ServiceUnavailable", None),
    (504, "Timeout", None),
];

/// What the proxy does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passes,
    Refused(u16, &'static str, Option<u32>),
    /// The API server carries it out, and the response is lost. With `hangs` the connection stays
    /// open, otherwise it is closed.
    Lost {
        hangs: bool,
    },
    /// A list gets the state at this resource version.
    Older(u64),
    /// A watch delivers nothing for this long.
    Held(Duration),
    /// A watch gets 410 Gone after this long.
    Gone(Duration),
}

/// What the proxy does with an event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventOutcome {
    Passes,
    /// Delivered this much later.
    Late(Duration),
    /// Delivered now, and again after this long.
    Twice(Duration),
    /// The connection breaks, and the event is lost.
    Cut,
}

/// How far the operator is in restarting a watch that broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reconnect {
    /// The next request is a watch or a list.
    Cut,
    /// The operator has listed the older state; the next request is a watch.
    Listed,
}

/// A fault at one point of a trial.
#[derive(Debug)]
pub(crate) struct Injection {
    fault: Fault,
    /// How many matching requests or events pass before the first one that is affected.
    after: u32,
    /// How many more requests or events are affected.
    times: u32,
    /// The only resource whose watches are affected; `None`: all.
    only: Option<&'static str>,
    pause: Duration,
    hangs: bool,
    /// On average one of this many requests is refused, for `Fault::Often`.
    one_of: u32,
    random: fastrand::Rng,
    /// The resource version of the older cache.
    version: u64,
    /// The broken watches, by resource.
    reconnects: HashMap<String, Reconnect>,
    /// How many requests or events were affected so far.
    pub(crate) strikes: u32,
}

impl Injection {
    pub(crate) fn new(fault: Fault, seed: u64, version: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let after = random.u32(0..4);
        let times = match fault {
            Fault::Late | Fault::VeryLate | Fault::Repeated | Fault::Often => u32::MAX,
            Fault::Older | Fault::Skipped | Fault::Lost => random.u32(1..=2),
            Fault::Unrenewed => random.u32(20..=30),
            _ => random.u32(1..=4),
        };
        let only = [Some("pods"), Some("trainingjobs"), None];
        Self {
            fault,
            // `Often` chooses the requests at random.
            after: if fault == Fault::Often { 0 } else { after },
            times,
            only: only[random.usize(0..only.len())],
            pause: Duration::from_secs(random.u64(2..=6)),
            hangs: random.bool(),
            one_of: [100, 10, 2][usize::try_from(seed % 3).unwrap()],
            random,
            version,
            reconnects: HashMap::new(),
            strikes: 0,
        }
    }

    /// Delays all events of the watches of one resource.
    pub(crate) fn late(resource: &'static str) -> Self {
        let mut injection = Self::new(Fault::Late, 0, 0);
        (injection.only, injection.after) = (Some(resource), 0);
        injection
    }

    /// A new operator starts, and its first lists and watches of these resources come from the
    /// older cache.
    pub(crate) fn for_new_operator(mut self, resources: &[&str]) -> Self {
        let reconnects = resources
            .iter()
            .map(|it| ((*it).to_owned(), Reconnect::Cut));
        self.reconnects = reconnects.collect();
        self.times = 0;
        self.strikes = 1;
        self
    }

    /// Whether no further request or event will be affected.
    pub(crate) fn is_over(&self) -> bool {
        self.times == 0 && self.reconnects.is_empty()
    }

    /// Affects no further request. `Unrenewed` continues until its count is used up, so that the
    /// operator does lose its Lease.
    pub(crate) fn end(&mut self) {
        if self.fault != Fault::Unrenewed {
            self.times = 0;
        }
    }

    pub(crate) fn request(&mut self, call: &ApiCall) -> Outcome {
        let ApiCall { resource, verb } = call;
        if let Some(outcome) = self.reconnect(resource, *verb) {
            return outcome;
        }
        let is_event = resource == "events";
        if (resource == LEASES) != (self.fault == Fault::Unrenewed) {
            return Outcome::Passes;
        }
        let fits = match self.fault {
            Fault::Conflict | Fault::Lost => *verb == Verb::Write && !is_event,
            Fault::Busy | Fault::Broken | Fault::Unavailable => !is_event,
            Fault::Often => !is_event && self.random.u32(0..self.one_of) == 0,
            Fault::Unrenewed => true,
            Fault::Cut
            | Fault::Late
            | Fault::VeryLate
            | Fault::Repeated
            | Fault::Older
            | Fault::Skipped
            | Fault::Dies
            | Fault::Restored => false,
        };
        if !fits || !self.strike() {
            return Outcome::Passes;
        }
        let refusal = if self.fault == Fault::Often {
            self.random.choice(REFUSALS)
        } else {
            self.fault.refusal()
        };
        match refusal {
            Some((code, reason, seconds)) => Outcome::Refused(code, reason, seconds),
            None => Outcome::Lost { hangs: self.hangs },
        }
    }

    /// The outcome of a request that restarts a broken watch.
    fn reconnect(&mut self, resource: &str, verb: Verb) -> Option<Outcome> {
        let step = self.reconnects.get(resource)?;
        let is_older = self.fault == Fault::Older;
        match (step, verb) {
            (Reconnect::Cut, Verb::Watch) if is_older => Some(Outcome::Gone(Duration::ZERO)),
            (Reconnect::Cut, Verb::Watch) => Some(Outcome::Gone(self.pause)),
            (Reconnect::Cut, Verb::List) if is_older => {
                self.reconnects
                    .insert(resource.to_owned(), Reconnect::Listed);
                Some(Outcome::Older(self.version))
            }
            (Reconnect::Cut, Verb::List) => {
                self.reconnects.remove(resource);
                Some(Outcome::Passes)
            }
            (Reconnect::Listed, Verb::Watch) => {
                self.reconnects.remove(resource);
                Some(Outcome::Held(self.pause))
            }
            (Reconnect::Listed, _) | (_, Verb::Read | Verb::Write) => None,
        }
    }

    pub(crate) fn event(&mut self, resource: &str) -> EventOutcome {
        let fits = self.only.is_none_or(|only| only == resource);
        let affects_watches = matches!(
            self.fault,
            Fault::Cut
                | Fault::Late
                | Fault::VeryLate
                | Fault::Repeated
                | Fault::Older
                | Fault::Skipped
        );
        if !fits || !affects_watches || !self.strike() {
            return EventOutcome::Passes;
        }
        match self.fault {
            Fault::Late => return EventOutcome::Late(Duration::from_secs(10)),
            Fault::VeryLate => return EventOutcome::Late(Duration::from_secs(30)),
            Fault::Repeated => return EventOutcome::Twice(Duration::from_secs(3)),
            Fault::Older | Fault::Skipped => {
                self.reconnects.insert(resource.to_owned(), Reconnect::Cut);
            }
            _ => {}
        }
        EventOutcome::Cut
    }

    fn strike(&mut self) -> bool {
        if self.times == 0 {
            return false;
        }
        if self.after > 0 {
            self.after -= 1;
            return false;
        }
        self.times -= 1;
        self.strikes += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_cache_fault_expires_then_lists_then_delays() {
        let mut injection = Injection::new(Fault::Older, 0, 7);
        (injection.after, injection.times, injection.only) = (1, 1, Some("pods"));
        let mut send = |verb| {
            let resource = "pods".to_owned();
            injection.request(&ApiCall { resource, verb })
        };
        assert_eq!(send(Verb::Watch), Outcome::Passes);
        assert_eq!(injection.event("services"), EventOutcome::Passes);
        assert_eq!(injection.event("pods"), EventOutcome::Passes);
        assert_eq!(injection.event("pods"), EventOutcome::Cut);
        assert!(!injection.is_over());
        let mut send = |verb| {
            let resource = "pods".to_owned();
            injection.request(&ApiCall { resource, verb })
        };
        assert_eq!(send(Verb::Watch), Outcome::Gone(Duration::ZERO));
        assert_eq!(
            send(Verb::Read),
            Outcome::Passes,
            "a read gets the current state"
        );
        assert_eq!(send(Verb::List), Outcome::Older(7));
        assert!(matches!(send(Verb::Watch), Outcome::Held(_)));
        assert!(injection.is_over());
        assert_eq!(
            (injection.event("pods"), injection.strikes),
            (EventOutcome::Passes, 1)
        );
    }

    #[test]
    fn every_fault_strikes_and_ends() {
        for fault in Fault::OF_PROXY {
            for seed in 0..20 {
                let mut injection = Injection::new(fault, seed, 7);
                // Enough requests that a rate of 1 % affects one of them.
                for verb in [Verb::Write, Verb::Watch, Verb::List, Verb::Watch].repeat(400) {
                    let resource = LEASES.to_owned();
                    injection.request(&ApiCall { resource, verb });
                    let resource = "pods".to_owned();
                    injection.request(&ApiCall { resource, verb });
                    injection.event("pods");
                    injection.event("trainingjobs");
                    let resource = "trainingjobs".to_owned();
                    injection.request(&ApiCall { resource, verb });
                }
                assert!(injection.strikes > 0, "{fault:?} {seed}");
                injection.end();
                assert!(injection.is_over(), "{fault:?} {seed}");
            }
        }
    }
}
