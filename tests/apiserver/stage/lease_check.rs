//! Whether an operator that needs a Lease has one whenever a write of it is carried out.
//!
//! A write whose answer the operator does not wait for is not seen. Giving the Lease back counts as a renewal.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Method, Request};
use kube::Client;
use kube::client::Body;

/// Between an operator and the API server.
#[derive(Clone)]
pub(super) struct LeaseCheck {
    /// Of its Lease, if it needs one.
    duration: Option<Duration>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// When the last renewal that was carried out was sent.
    renewed: Option<Instant>,
    wrong: Vec<String>,
}

pub(super) fn is_lease(path: &str) -> bool {
    path.contains("/coordination.k8s.io/")
}

impl LeaseCheck {
    pub(super) fn new(duration: Option<Duration>) -> Self {
        let seen = Arc::default();
        Self { duration, seen }
    }

    /// Its writes outside of the time of its Lease.
    pub(super) fn wrong(&self) -> Vec<String> {
        self.seen.lock().unwrap().wrong.clone()
    }

    /// Records a write that the API server answered by now.
    fn wrote(&self, (method, path): (&Method, &str), sent: Instant, now: Instant) {
        let Some(duration) = self.duration else {
            return;
        };
        let mut seen = self.seen.lock().unwrap();
        // Creating the Lease makes nobody its holder.
        if is_lease(path) && method == Method::PUT {
            seen.renewed = Some(sent);
            return;
        }
        let since = seen.renewed.map(|renewed| now - renewed);
        if !is_lease(path) && since.is_none_or(|it| it >= duration) {
            let wrong =
                format!("{method} {path} was written {since:?} after the renewal of the Lease");
            seen.wrong.push(wrong);
        }
    }

    /// The same client, whose writes are recorded.
    pub(super) fn of(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let check = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, check) = (client.clone(), check.clone());
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let sent = Instant::now();
            async move {
                let answer = client.send(request).await?;
                if method != Method::GET && answer.status().is_success() {
                    check.wrote((&method, &path), sent, Instant::now());
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
    fn a_write_without_a_lease_or_after_its_time_is_wrong() {
        let begun = Instant::now();
        let at = |milliseconds| begun + Duration::from_millis(milliseconds);
        let pods = (&Method::POST, "/api/v1/namespaces/ml/pods");
        let check = LeaseCheck::new(Some(Duration::from_secs(6)));
        check.wrote((&Method::POST, LEASE), at(0), at(10));
        check.wrote(pods, at(10), at(20));
        assert_eq!(check.wrong().len(), 1);
        check.wrote((&Method::PUT, LEASE), at(1_000), at(1_100));
        check.wrote(pods, at(6_800), at(6_900));
        assert_eq!(check.wrong().len(), 1);
        check.wrote(pods, at(6_900), at(7_000));
        assert_eq!(check.wrong().len(), 2);
        let needs_none = LeaseCheck::new(None);
        needs_none.wrote(pods, at(0), at(10));
        assert_eq!(needs_none.wrong(), [""; 0]);
    }
}
