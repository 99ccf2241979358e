//! A network between an operator and the API server. It can swallow what the watch of the pods tells, or the answer to one
//! write: the connection stays open, and nothing comes. It can let the API server's clock be another one.

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

/// What it does.
#[derive(Clone, Default)]
pub(crate) struct Network {
    swallows: Arc<AtomicBool>,
    /// End of a path.
    to_lose: Arc<Mutex<Option<&'static str>>>,
    has_lost: Arc<AtomicBool>,
    seconds_behind: Arc<AtomicI64>,
}

impl Network {
    /// From now on answers say that the API server's clock is so many seconds behind.
    pub(crate) fn set_clock_behind(&self, seconds: i64) {
        self.seconds_behind.store(seconds, Ordering::SeqCst);
    }

    /// From now on.
    pub(crate) fn swallow_pods(&self, swallows: bool) {
        self.swallows.store(swallows, Ordering::SeqCst);
    }

    fn swallows(&self) -> bool {
        self.swallows.load(Ordering::SeqCst)
    }

    /// The answer to the next write to a path that ends so. The write is carried out.
    pub(crate) fn lose_an_answer(&self, to: &'static str) {
        *self.to_lose.lock().unwrap() = Some(to);
    }

    pub(crate) fn has_lost_one(&self) -> bool {
        self.has_lost.load(Ordering::SeqCst)
    }
}

impl Network {
    /// The same client, behind this network.
    pub(crate) fn before(&self, client: Client) -> Client {
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
    ) -> kube::Result<Response<Swallowed<Body>>> {
        // Other lists of pods are those of one namespace.
        let is_watch = request.uri().path() == "/api/v1/pods";
        if is_watch && self.swallows() {
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
        Ok(answer.map(|body| Swallowed {
            body: Box::pin(body),
            by: is_watch.then_some(self),
        }))
    }
}

/// A body of which nothing comes any more once it is swallowed.
pub(crate) struct Swallowed<B> {
    body: Pin<Box<B>>,
    by: Option<Network>,
}

impl<B: HttpBody> HttpBody for Swallowed<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        if self.by.as_ref().is_some_and(Network::swallows) {
            return Poll::Pending;
        }
        self.body.as_mut().poll_frame(context)
    }
}
