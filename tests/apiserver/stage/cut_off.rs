//! The death of an operator, as the API server sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt};
use http::{Method, Request, Response};
use kube::client::Body;
use tower::{Layer, Service};

use super::lease_check::is_lease;

/// Lets so many writes through and then none: to the server it looks as if the operator had died.
#[derive(Clone)]
pub(super) struct CutOff {
    pub(super) left: Arc<AtomicU32>,
}

impl<S> Layer<S> for CutOff {
    type Service = CutOffService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CutOffService {
            inner,
            left: Arc::clone(&self.left),
        }
    }
}

#[derive(Clone)]
pub(super) struct CutOffService<S> {
    inner: S,
    left: Arc<AtomicU32>,
}

impl<S, B> Service<Request<Body>> for CutOffService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let is_counted = !path.ends_with("/events") && !is_lease(path);
        let is_dead = self.left.load(Ordering::SeqCst) == 0;
        if is_lease(path) && is_dead {
            return std::future::pending().boxed();
        }
        if *request.method() != Method::GET && is_counted {
            let take = |left: u32| left.checked_sub(1);
            if self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                .is_err()
            {
                return std::future::pending().boxed();
            }
        }
        self.inner.call(request).boxed()
    }
}
