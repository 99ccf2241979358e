//! A network between an operator and the API server that can swallow what the watch of the pods tells: the connection stays
//! open, and nothing comes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt};
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame};
use kube::client::Body;
use tower::{Layer, Service};

/// Whether the watch of the pods is swallowed.
#[derive(Clone, Default)]
pub(crate) struct Network {
    swallows: Arc<AtomicBool>,
}

impl Network {
    /// From now on.
    pub(crate) fn swallow_pods(&self) {
        self.swallows.store(true, Ordering::SeqCst);
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
{
    type Response = Response<Swallowed<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_watch = request
            .uri()
            .query()
            .is_some_and(|it| it.contains("watch=true"));
        let is_of_pods = request.uri().path().ends_with("/pods");
        let by = (is_watch && is_of_pods).then(|| self.network.clone());
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await?;
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
        let by = self.by.as_ref();
        if by.is_some_and(|by| by.swallows.load(Ordering::SeqCst)) {
            return Poll::Pending;
        }
        self.body.as_mut().poll_frame(context)
    }
}
