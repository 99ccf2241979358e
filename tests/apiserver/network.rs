//! A network between an operator and the API server. It can swallow what the watch of the pods tells, or the answer to one
//! write: the connection stays open, and nothing comes. It can let the API server's clock be another one.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt};
use http::header::DATE;
use http::{Method, Request, Response};
use http_body::{Body as HttpBody, Frame};
use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use tower::{Layer, Service};

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

impl<S> Layer<S> for Network {
    type Service = NetworkService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        NetworkService {
            inner,
            network: self.clone(),
        }
    }
}

#[derive(Clone)]
pub(crate) struct NetworkService<S> {
    inner: S,
    network: Network,
}

impl<S, B> Service<Request<Body>> for NetworkService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<Swallowed<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // Other lists of pods are those of one namespace.
        let is_watch = request.uri().path() == "/api/v1/pods";
        let by = is_watch.then(|| self.network.clone());
        if by.as_ref().is_some_and(Network::swallows) {
            return std::future::pending().boxed();
        }
        let is_write = *request.method() != Method::GET;
        let path = request.uri().path();
        let mut to_lose = self.network.to_lose.lock().unwrap();
        let loses = to_lose
            .take_if(|to| is_write && path.ends_with(*to))
            .is_some();
        drop(to_lose);
        let has_lost = Arc::clone(&self.network.has_lost);
        let behind = SignedDuration::from_secs(self.network.seconds_behind.load(Ordering::SeqCst));
        let answer = self.inner.call(request);
        async move {
            let mut answer = answer.await?;
            let date =
                DateTimePrinter::new().timestamp_to_rfc9110_string(&(Timestamp::now() - behind));
            let date = date.unwrap().parse().unwrap();
            answer.headers_mut().insert(DATE, date);
            if loses {
                has_lost.store(true, Ordering::SeqCst);
                return std::future::pending().await;
            }
            Ok(answer.map(|body| Swallowed {
                body: Box::pin(body),
                by,
            }))
        }
        .boxed()
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
