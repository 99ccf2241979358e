//! What goes on between an operator and the API server: the trouble, and whether anything is under way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::asked::{Asked, LEASES};
use super::fault::Refusal;
use super::trouble::{Fate, Part, Trouble};

/// What an operator watches in any case.
const WATCHED: [&str; 4] = ["networkpolicies", "pods", "services", "trainingjobs"];

pub(crate) struct Traffic(Mutex<Now>);

struct Now {
    trouble: Option<Trouble>,
    /// Nothing that is asked of this kind succeeds.
    refused: Option<&'static str>,
    /// Nothing at all succeeds. Code, reason and seconds of the answer.
    outage: Option<Refusal>,
    /// Watches that are open, and parts of what they tell that are under way.
    watches: BTreeMap<String, u32>,
    under_way: u32,
    last: Instant,
}

impl Traffic {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Now {
            trouble: None,
            refused: None,
            outage: None,
            watches: BTreeMap::new(),
            under_way: 0,
            last: Instant::now(),
        })))
    }

    /// Something happens.
    fn now(&self) -> MutexGuard<'_, Now> {
        let mut now = self.0.lock().unwrap();
        now.last = Instant::now();
        now
    }

    pub(crate) fn begin(&self, trouble: Trouble) {
        self.now().trouble = Some(trouble);
    }

    /// From now on whatever is asked of this kind is answered with 500.
    pub(crate) fn refuse(&self, resource: &'static str) {
        self.now().refused = Some(resource);
    }

    /// From now on nothing of a kind is refused alone.
    pub(crate) fn allow(&self) {
        self.now().refused = None;
    }

    /// From now on everything is refused, and what watches say is cut; `None`: nothing any more.
    pub(crate) fn refuse_all(&self, with: Option<Refusal>) {
        self.now().outage = with;
    }

    /// No more trouble begins. How often it struck.
    pub(crate) fn end(&self) -> u32 {
        let mut now = self.0.lock().unwrap();
        now.trouble.as_mut().map_or(0, |trouble| {
            trouble.end();
            trouble.strikes
        })
    }

    pub(crate) fn is_over(&self) -> bool {
        let now = self.0.lock().unwrap();
        now.trouble.as_ref().is_none_or(Trouble::is_over)
    }

    /// Whether the operator watches everything, has been told everything, and has asked for nothing for so long.
    pub(crate) fn is_quiet(&self, time: Duration) -> bool {
        let now = self.0.lock().unwrap();
        let is_open = |kind: &&str| now.watches.get(*kind).is_some_and(|open| *open > 0);
        now.under_way == 0 && now.last.elapsed() > time && WATCHED.iter().all(is_open)
    }

    pub(crate) fn request(&self, asked: &Asked) -> Fate {
        let mut now = self.0.lock().unwrap();
        // A Lease is never at rest.
        if asked.resource != LEASES {
            now.last = Instant::now();
        }
        if let Some((code, reason, seconds)) = now.outage {
            return Fate::Refused(code, reason, seconds);
        }
        if now.refused == Some(asked.resource.as_str()) {
            return Fate::Refused(500, "InternalError", None);
        }
        let trouble = now.trouble.as_mut();
        trouble.map_or(Fate::Passes, |trouble| trouble.request(asked))
    }

    pub(crate) fn part(&self, resource: &str) -> Part {
        let mut now = self.now();
        if now.outage.is_some() {
            return Part::Cut;
        }
        let trouble = now.trouble.as_mut();
        trouble.map_or(Part::Passes, |trouble| trouble.part(resource))
    }
}

/// A watch is open for as long as it has one.
pub(crate) struct Open {
    traffic: Arc<Traffic>,
    resource: String,
}

impl Open {
    pub(crate) fn new(traffic: &Arc<Traffic>, resource: String) -> Self {
        let traffic = Arc::clone(traffic);
        *traffic.now().watches.entry(resource.clone()).or_default() += 1;
        Self { traffic, resource }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(open) = self.traffic.now().watches.get_mut(&self.resource) {
            *open -= 1;
        }
    }
}

/// A part of what a watch tells is under way for as long as it has one.
pub(crate) struct UnderWay(Arc<Traffic>);

impl UnderWay {
    pub(crate) fn new(traffic: &Arc<Traffic>) -> Self {
        traffic.now().under_way += 1;
        Self(Arc::clone(traffic))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.now().under_way -= 1;
    }
}
