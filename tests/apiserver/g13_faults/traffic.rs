//! The traffic between an operator and the API server: the injected fault, and whether requests or
//! events are in flight.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::api_call::{ApiCall, LEASES};
use super::fault::Refusal;
use super::injection::{EventOutcome, Injection, Outcome};

/// The resources that every operator watches.
const WATCHED: [&str; 4] = ["networkpolicies", "pods", "services", "trainingjobs"];

pub(crate) struct Traffic(Mutex<Now>);

struct Now {
    injection: Option<Injection>,
    /// All requests for this resource are refused.
    refused: Option<&'static str>,
    /// All requests are refused with this response.
    outage: Option<Refusal>,
    /// The number of open watches by resource.
    watches: BTreeMap<String, u32>,
    /// Watch events that the proxy has read and not delivered yet.
    in_flight: u32,
    /// The time of the last request or event.
    last: Instant,
}

impl Traffic {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Now {
            injection: None,
            refused: None,
            outage: None,
            watches: BTreeMap::new(),
            in_flight: 0,
            last: Instant::now(),
        })))
    }

    /// The state, for a change to it: the traffic is not quiet now.
    fn now(&self) -> MutexGuard<'_, Now> {
        let mut now = self.0.lock().unwrap();
        now.last = Instant::now();
        now
    }

    pub(crate) fn begin(&self, injection: Injection) {
        self.now().injection = Some(injection);
    }

    /// Refuses all further requests for a resource with 500.
    pub(crate) fn refuse(&self, resource: &'static str) {
        self.now().refused = Some(resource);
    }

    /// Ends [`Self::refuse`]: the resource is served again.
    pub(crate) fn allow(&self) {
        self.now().refused = None;
    }

    /// Refuses all requests and breaks the watches; `None` ends this.
    pub(crate) fn refuse_all(&self, with: Option<Refusal>) {
        self.now().outage = with;
    }

    /// Ends the injection. Returns how many requests or events it has affected.
    pub(crate) fn end(&self) -> u32 {
        let mut now = self.0.lock().unwrap();
        now.injection.as_mut().map_or(0, |injection| {
            injection.end();
            injection.strikes
        })
    }

    pub(crate) fn is_over(&self) -> bool {
        let now = self.0.lock().unwrap();
        now.injection.as_ref().is_none_or(Injection::is_over)
    }

    /// Whether the operator has all its watches open, has received all events, and has sent no
    /// request for `time`.
    pub(crate) fn is_quiet(&self, time: Duration) -> bool {
        let now = self.0.lock().unwrap();
        let is_open = |kind: &&str| now.watches.get(*kind).is_some_and(|open| *open > 0);
        now.in_flight == 0 && now.last.elapsed() > time && WATCHED.iter().all(is_open)
    }

    pub(crate) fn request(&self, call: &ApiCall) -> Outcome {
        let mut now = self.0.lock().unwrap();
        // The operator renews its Lease all the time.
        if call.resource != LEASES {
            now.last = Instant::now();
        }
        if let Some((code, reason, seconds)) = now.outage {
            return Outcome::Refused(code, reason, seconds);
        }
        if now.refused == Some(call.resource.as_str()) {
            return Outcome::Refused(500, "InternalError", None);
        }
        let injection = now.injection.as_mut();
        injection.map_or(Outcome::Passes, |injection| injection.request(call))
    }

    pub(crate) fn event(&self, resource: &str) -> EventOutcome {
        let mut now = self.now();
        if now.outage.is_some() {
            return EventOutcome::Cut;
        }
        let injection = now.injection.as_mut();
        injection.map_or(EventOutcome::Passes, |injection| injection.event(resource))
    }
}

/// Counts a watch as open until it is dropped.
pub(crate) struct OpenWatch {
    traffic: Arc<Traffic>,
    resource: String,
}

impl OpenWatch {
    pub(crate) fn new(traffic: &Arc<Traffic>, resource: String) -> Self {
        let traffic = Arc::clone(traffic);
        *traffic.now().watches.entry(resource.clone()).or_default() += 1;
        Self { traffic, resource }
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        if let Some(open) = self.traffic.now().watches.get_mut(&self.resource) {
            *open -= 1;
        }
    }
}

/// Counts a watch event as in flight until it is dropped.
pub(crate) struct InFlight(Arc<Traffic>);

impl InFlight {
    pub(crate) fn new(traffic: &Arc<Traffic>) -> Self {
        traffic.now().in_flight += 1;
        Self(Arc::clone(traffic))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.now().in_flight -= 1;
    }
}
