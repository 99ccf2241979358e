//! What goes wrong between an operator and the API server, request by request: pure and seeded.

use std::collections::HashMap;
use std::time::Duration;

use super::asked::{Asked, LEASES, What};
use super::fault::{Fault, Refusal};

/// What an API server answers that is overloaded or broken.
const REFUSALS: [Refusal; 4] = [
    (429, "TooManyRequests", Some(1)),
    (500, "InternalError", None),
    (503, "ServiceUnavailable", None),
    (504, "Timeout", None),
];

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Passes,
    Refused(u16, &'static str, Option<u32>),
    /// It is carried out. Without an answer the connection stays open, or is closed.
    Lost {
        hangs: bool,
    },
    /// A list as it was at this version.
    Older(u64),
    /// A watch that has nothing to tell for this long.
    Held(Duration),
    /// A watch of a version that is too old, after this long.
    Gone(Duration),
}

/// What becomes of a part of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Passes,
    /// By so much.
    Late(Duration),
    /// Now, and once more after so long.
    Twice(Duration),
    /// The connection breaks, and the part is lost.
    Cut,
}

/// How far a watch is that broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Cut,
    Listed,
}

/// A fault at one place of a course.
#[derive(Debug)]
pub(crate) struct Trouble {
    fault: Fault,
    /// Of what it may strike, so many pass before, and so many are struck.
    after: u32,
    times: u32,
    /// All kinds, or this one.
    only: Option<&'static str>,
    pause: Duration,
    hangs: bool,
    /// Of so many requests one is refused.
    one_of: u32,
    random: fastrand::Rng,
    /// The older cache.
    version: u64,
    stages: HashMap<String, Stage>,
    pub(crate) strikes: u32,
}

impl Trouble {
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
            // A part of the requests is refused anyway.
            after: if fault == Fault::Often { 0 } else { after },
            times,
            only: only[random.usize(0..only.len())],
            pause: Duration::from_secs(random.u64(2..=6)),
            hangs: random.bool(),
            one_of: [100, 10, 2][usize::try_from(seed % 3).unwrap()],
            random,
            version,
            stages: HashMap::new(),
            strikes: 0,
        }
    }

    /// What watches of this kind tell is late.
    pub(crate) fn late(resource: &'static str) -> Self {
        let mut trouble = Self::new(Fault::Late, 0, 0);
        (trouble.only, trouble.after) = (Some(resource), 0);
        trouble
    }

    /// The operator begins anew, and all it reads first is older.
    pub(crate) fn begun_anew(mut self, resources: &[&str]) -> Self {
        let stages = resources.iter().map(|it| ((*it).to_owned(), Stage::Cut));
        self.stages = stages.collect();
        self.times = 0;
        self.strikes = 1;
        self
    }

    /// Whether it has struck as often as it should, and nothing is left of it.
    pub(crate) fn is_over(&self) -> bool {
        self.times == 0 && self.stages.is_empty()
    }

    /// Starts no new fault. `Unrenewed` continues until its count is used up, so that the operator does lose its Lease.
    pub(crate) fn end(&mut self) {
        if self.fault != Fault::Unrenewed {
            self.times = 0;
        }
    }

    pub(crate) fn request(&mut self, asked: &Asked) -> Fate {
        let Asked { resource, what } = asked;
        if let Some(fate) = self.again(resource, *what) {
            return fate;
        }
        let is_event = resource == "events";
        if (resource == LEASES) != (self.fault == Fault::Unrenewed) {
            return Fate::Passes;
        }
        let fits = match self.fault {
            Fault::Conflict | Fault::Lost => *what == What::Write && !is_event,
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
            return Fate::Passes;
        }
        let refusal = if self.fault == Fault::Often {
            self.random.choice(REFUSALS)
        } else {
            self.fault.refusal()
        };
        match refusal {
            Some((code, reason, seconds)) => Fate::Refused(code, reason, seconds),
            None => Fate::Lost { hangs: self.hangs },
        }
    }

    /// A watch that broke off is begun again.
    fn again(&mut self, resource: &str, what: What) -> Option<Fate> {
        let stage = self.stages.get(resource)?;
        let is_older = self.fault == Fault::Older;
        match (stage, what) {
            (Stage::Cut, What::Watch) if is_older => Some(Fate::Gone(Duration::ZERO)),
            (Stage::Cut, What::Watch) => Some(Fate::Gone(self.pause)),
            (Stage::Cut, What::List) if is_older => {
                self.stages.insert(resource.to_owned(), Stage::Listed);
                Some(Fate::Older(self.version))
            }
            (Stage::Cut, What::List) => {
                self.stages.remove(resource);
                Some(Fate::Passes)
            }
            (Stage::Listed, What::Watch) => {
                self.stages.remove(resource);
                Some(Fate::Held(self.pause))
            }
            (Stage::Listed, _) | (_, What::Read | What::Write) => None,
        }
    }

    pub(crate) fn part(&mut self, resource: &str) -> Part {
        let fits = self.only.is_none_or(|only| only == resource);
        let is_of_watches = matches!(
            self.fault,
            Fault::Cut
                | Fault::Late
                | Fault::VeryLate
                | Fault::Repeated
                | Fault::Older
                | Fault::Skipped
        );
        if !fits || !is_of_watches || !self.strike() {
            return Part::Passes;
        }
        match self.fault {
            Fault::Late => return Part::Late(Duration::from_secs(10)),
            Fault::VeryLate => return Part::Late(Duration::from_secs(30)),
            Fault::Repeated => return Part::Twice(Duration::from_secs(3)),
            Fault::Older | Fault::Skipped => {
                self.stages.insert(resource.to_owned(), Stage::Cut);
            }
            _ => {}
        }
        Part::Cut
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
    fn a_watch_of_an_older_cache_is_gone_then_listed_then_silent_then_well() {
        let mut trouble = Trouble::new(Fault::Older, 0, 7);
        (trouble.after, trouble.times, trouble.only) = (1, 1, Some("pods"));
        let mut ask = |what| {
            let resource = "pods".to_owned();
            trouble.request(&Asked { resource, what })
        };
        assert_eq!(ask(What::Watch), Fate::Passes);
        assert_eq!(trouble.part("services"), Part::Passes);
        assert_eq!(trouble.part("pods"), Part::Passes);
        assert_eq!(trouble.part("pods"), Part::Cut);
        assert!(!trouble.is_over());
        let mut ask = |what| {
            let resource = "pods".to_owned();
            trouble.request(&Asked { resource, what })
        };
        assert_eq!(ask(What::Watch), Fate::Gone(Duration::ZERO));
        assert_eq!(
            ask(What::Read),
            Fate::Passes,
            "it is asked, and says the truth"
        );
        assert_eq!(ask(What::List), Fate::Older(7));
        assert!(matches!(ask(What::Watch), Fate::Held(_)));
        assert!(trouble.is_over());
        assert_eq!((trouble.part("pods"), trouble.strikes), (Part::Passes, 1));
    }

    #[test]
    fn every_fault_strikes_and_ends() {
        for fault in Fault::OF_PROXY {
            for seed in 0..20 {
                let mut trouble = Trouble::new(fault, seed, 7);
                // Enough that one request of a hundred is among them.
                for what in [What::Write, What::Watch, What::List, What::Watch].repeat(400) {
                    let resource = LEASES.to_owned();
                    trouble.request(&Asked { resource, what });
                    let resource = "pods".to_owned();
                    trouble.request(&Asked { resource, what });
                    trouble.part("pods");
                    trouble.part("trainingjobs");
                    let resource = "trainingjobs".to_owned();
                    trouble.request(&Asked { resource, what });
                }
                assert!(trouble.strikes > 0, "{fault:?} {seed}");
                trouble.end();
                assert!(trouble.is_over(), "{fault:?} {seed}");
            }
        }
    }
}
