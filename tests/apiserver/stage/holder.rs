//! Whether an operator that needs a Lease has one whenever a write of it is carried out.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use http::{Method, Request, Response};
use kube::client::Body;
use tower::{Layer, Service};

/// Between an operator and the API server.
#[derive(Clone)]
pub(super) struct Holder {
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

impl Holder {
    pub(super) fn new(duration: Option<Duration>) -> Self {
        let seen = Arc::default();
        Self { duration, seen }
    }

    /// Its writes outside of the time of its Lease.
    pub(super) fn wrong(&self) -> Vec<String> {
        self.seen.lock().unwrap().wrong.clone()
    }

    /// A write was carried out by now.
    fn wrote(&self, what: &str, sent: Instant, now: Instant) {
        let Some(duration) = self.duration else {
            return;
        };
        let mut seen = self.seen.lock().unwrap();
        // Nobody has it by creating it.
        if is_lease(what) && what.starts_with("PUT") {
            seen.renewed = Some(sent);
            return;
        }
        let since = seen.renewed.map(|renewed| now - renewed);
        if !is_lease(what) && since.is_none_or(|it| it >= duration) {
            let wrong = format!("{what} was written {since:?} after the renewal of the Lease");
            seen.wrong.push(wrong);
        }
    }
}

impl<S> Layer<S> for Holder {
    type Service = HolderService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let holder = self.clone();
        HolderService { inner, holder }
    }
}

#[derive(Clone)]
pub(super) struct HolderService<S> {
    inner: S,
    holder: Holder,
}

impl<S, B> Service<Request<Body>> for HolderService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let what = format!("{} {}", request.method(), request.uri().path());
        let is_write = *request.method() != Method::GET;
        let (holder, sent) = (self.holder.clone(), Instant::now());
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await?;
            if is_write && answer.status().is_success() {
                holder.wrote(&what, sent, Instant::now());
            }
            Ok(answer)
        }
        .boxed()
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
        let pods = "POST /api/v1/namespaces/ml/pods";
        let holder = Holder::new(Some(Duration::from_secs(6)));
        holder.wrote(&format!("POST {LEASE}"), at(0), at(10));
        holder.wrote(pods, at(10), at(20));
        assert_eq!(holder.wrong().len(), 1);
        holder.wrote(&format!("PUT {LEASE}/roundhouse"), at(1_000), at(1_100));
        holder.wrote(pods, at(6_800), at(6_900));
        assert_eq!(holder.wrong().len(), 1);
        holder.wrote(pods, at(6_900), at(7_000));
        assert_eq!(holder.wrong().len(), 2);
        let needs_none = Holder::new(None);
        needs_none.wrote(pods, at(0), at(10));
        assert_eq!(needs_none.wrong(), [""; 0]);
    }
}
