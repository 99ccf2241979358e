//! Serves HTTP to any client that reaches the port, within the bounds of [`bounded_http`].

use std::convert::Infallible;

use axum::Router;
use hyper_util::service::TowerToHyperService;
use roundhouse_bounded_http::{self as bounded_http, Limits};
use tokio::net::TcpListener;

/// Serves until the future is dropped.
pub(crate) async fn serve(listener: TcpListener, router: Router) -> Infallible {
    let limits = Limits::default();
    let service = TowerToHyperService::new(router);
    let start = move |stream| {
        let connection = bounded_http::answer(stream, service.clone(), limits);
        tokio::spawn(connection).abort_handle()
    };
    bounded_http::accept(listener, limits, start, |error| {
        tracing::error!(%error, "cannot accept connections: probes and metrics get no answer");
    })
    .await
}
