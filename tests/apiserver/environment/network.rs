//! A faulty network between an operator and the API server. It can drop all events of the pod
//! watch, or the response to one write, while the connection stays open. It can also shift the
//! clock that the API server shows in its responses.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::header::DATE;
use http::{Method, Request, Response};
use http_body::{Body as HttpBody, Frame};
use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;

/// The faults that are switched on.
#[derive(Clone, Default)]
pub(crate) struct Network {
    /// The pod watch delivers nothing.
    is_silent: Arc<AtomicBool>,
    /// The network drops the response to the next write to a path with this end.
    to_lose: Arc<Mutex<Option<&'static str>>>,
    has_lost: Arc<AtomicBool>,
    seconds_behind: Arc<AtomicI64>,
}

impl Network {
    /// Makes the `Date` of all responses this many seconds late.
    pub(crate) fn set_clock_behind(&self, seconds: i64) {
        self.seconds_behind.store(seconds, Ordering::SeqCst);
    }

    /// Stops the pod watch of the operator without closing it, or lets it continue.
    pub(crate) fn silence_pod_watch(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::SeqCst);
    }

    fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::SeqCst)
    }

    /// Drops the response to the next write to a path that ends with `to`. The API server
    /// carries out the write.
    pub(crate) fn drop_response_to(&self, to: &'static str) {
        *self.to_lose.lock().unwrap() = Some(to);
    }

    pub(crate) fn has_dropped_response(&self) -> bool {
        self.has_lost.load(Ordering::SeqCst)
    }
}

impl Network {
    /// Wraps a client: its requests pass through this network.
    pub(crate) fn wrap(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let network = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, network) = (client.clone(), network.clone());
            async move { network.pass(&client, request).await }
        });
        Client::new(service, namespace)
    }

    async fn pass(
        self,
        client: &Client,
        request: Request<Body>,
    ) -> kube::Result<Response<WatchBody<Body>>> {
        // The watch covers all namespaces; the operator reads other pod lists per namespace.
        let is_watch = request.uri().path() == "/api/v1/pods";
        if is_watch && self.is_silent() {
            return std::future::pending().await;
        }
        let is_write = *request.method() != Method::GET;
        let path = request.uri().path().to_owned();
        let loses = {
            let mut to_lose = self.to_lose.lock().unwrap();
            let lost = to_lose.take_if(|to| is_write && path.ends_with(*to));
            lost.is_some()
        };
        let behind = SignedDuration::from_secs(self.seconds_behind.load(Ordering::SeqCst));
        let mut answer = client.send(request).await?;
        let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&(Timestamp::now() - behind));
        let date = date.unwrap().parse().unwrap();
        answer.headers_mut().insert(DATE, date);
        if loses {
            self.has_lost.store(true, Ordering::SeqCst);
            return std::future::pending().await;
        }
        Ok(answer.map(|body| WatchBody {
            body: Box::pin(body),
            by: is_watch.then_some(self),
        }))
    }
}

/// A response body that delivers nothing while `by` is silent.
pub(crate) struct WatchBody<B> {
    body: Pin<Box<B>>,
    by: Option<Network>,
}

impl<B: HttpBody> HttpBody for WatchBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        if self.by.as_ref().is_some_and(Network::is_silent) {
            return Poll::Pending;
        }
        self.body.as_mut().poll_frame(context)
    }
}
