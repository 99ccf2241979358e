//! Serves HTTP to any client that reaches the port, within the bounds of [`bounded_http`].

use std::convert::Infallible;

use axum::Router;
use hyper_util::service::TowerToHyperService;
use roundhouse_bounded_http::{self as bounded_http, Limits};
use tokio::net::TcpListener;

/// Serves until the future is dropped.
pub(crate) async fn serve(listener: TcpListener, router: Router) -> Infallible {
    let service = TowerToHyperService::new(router);
    bounded_http::serve(listener, Limits::default(), service, |error| {
        tracing::error!(%error, "cannot accept connections: probes and metrics get no answer");
    })
    .await
}
