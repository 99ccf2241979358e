//! Checks that an operator with leader election holds the Lease during each of its writes.
//!
//! The check misses a write whose response the operator does not wait for. A release of the Lease
//! counts as a renewal.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Method, Request};
use kube::Client;
use kube::client::Body;

/// Observes the writes between an operator and the API server.
#[derive(Clone)]
pub(super) struct LeaseCheck {
    /// Duration of the operator's Lease; `None` without leader election.
    duration: Option<Duration>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// When the operator sent the last renewal that succeeded.
    renewed: Option<Instant>,
    violations: Vec<String>,
}

pub(super) fn is_lease(path: &str) -> bool {
    path.contains("/coordination.k8s.io/")
}

impl LeaseCheck {
    pub(super) fn new(duration: Option<Duration>) -> Self {
        let seen = Arc::default();
        Self { duration, seen }
    }

    /// Writes of the operator while it did not hold the Lease.
    pub(super) fn violations(&self) -> Vec<String> {
        self.seen.lock().unwrap().violations.clone()
    }

    /// Records a write that the operator sent at `sent` and the API server answered at `now`.
    fn record(&self, (method, path): (&Method, &str), sent: Instant, now: Instant) {
        let Some(duration) = self.duration else {
            return;
        };
        let mut seen = self.seen.lock().unwrap();
        // A Lease that was just created has no holder yet.
        if is_lease(path) && method == Method::PUT {
            seen.renewed = Some(sent);
            return;
        }
        let since = seen.renewed.map(|renewed| now - renewed);
        if !is_lease(path) && since.is_none_or(|it| it >= duration) {
            let violations =
                format!("{method} {path} was written {since:?} after the renewal of the Lease");
            seen.violations.push(violations);
        }
    }

    /// Wraps a client and records its writes.
    pub(super) fn wrap(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let check = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, check) = (client.clone(), check.clone());
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let sent = Instant::now();
            async move {
                let answer = client.send(request).await?;
                if method != Method::GET && answer.status().is_success() {
                    check.record((&method, &path), sent, Instant::now());
                }
                Ok::<_, kube::Error>(answer)
            }
        });
        Client::new(service, namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ml/leases";

    #[test]
    fn write_outside_the_lease_is_a_violation() {
        let begun = Instant::now();
        let at = |milliseconds| begun + Duration::from_millis(milliseconds);
        let pods = (&Method::POST, "/api/v1/namespaces/ml/pods");
        let check = LeaseCheck::new(Some(Duration::from_secs(6)));
        check.record((&Method::POST, LEASE), at(0), at(10));
        check.record(pods, at(10), at(20));
        assert_eq!(check.violations().len(), 1);
        check.record((&Method::PUT, LEASE), at(1_000), at(1_100));
        check.record(pods, at(6_800), at(6_900));
        assert_eq!(check.violations().len(), 1);
        check.record(pods, at(6_900), at(7_000));
        assert_eq!(check.violations().len(), 2);
        let needs_none = LeaseCheck::new(None);
        needs_none.record(pods, at(0), at(10));
        assert_eq!(needs_none.violations(), [""; 0]);
    }
}
