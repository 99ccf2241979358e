//! HTTP of the worker: health, readiness, metrics, progress. Reads files, changes nothing.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use roundhouse_contract::ports;
use tokio::net::TcpListener;

use crate::metrics::Metrics;
use crate::options::Options;
use crate::ranks;

/// What the handlers read.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The command line.
    pub options: Arc<Options>,
    /// The agent's metrics.
    pub metrics: Arc<Metrics>,
}

/// How long a taken port is tried again: the last container of the pod may still be closing it.
const BIND_DEADLINE: Duration = Duration::from_secs(10);

/// Listens.
///
/// # Errors
/// The port stays taken, or may not be used.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let deadline = Instant::now() + BIND_DEADLINE;
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            result => return result,
        }
    }
}

/// The routes.
pub fn router(shared: Shared) -> Router {
    Router::new()
        .route(ports::HEALTHZ_PATH, get(|| async { "ok\n" }))
        .route(ports::READYZ_PATH, get(readyz))
        .route(ports::METRICS_PATH, get(metrics))
        .route(ports::PROGRESS_PATH, get(progress))
        .with_state(shared)
}

async fn readyz(
    State(Shared {
        options,
        metrics: _,
    }): State<Shared>,
) -> Response {
    let waiting = ranks::not_ready(&options.run_dir, options.procs);
    if waiting.is_empty() {
        return "ok\n".into_response();
    }
    let text = format!(
        "not prepared yet: processes {waiting:?} of {}\n",
        options.procs
    );
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

async fn metrics(State(Shared { options, metrics }): State<Shared>) -> Response {
    match metrics.render(&options) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn progress(
    State(Shared {
        options,
        metrics: _,
    }): State<Shared>,
) -> Response {
    let progress = (0..options.procs)
        .find_map(|local| ranks::status(&options.run_dir, local).and_then(|s| s.progress));
    match progress {
        Some(progress) => axum::Json(progress).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_that_is_taken_is_tried_until_it_is_free() {
        let first = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let mut second = tokio::spawn(bind(first.local_addr().unwrap()));
        let still_waiting = tokio::time::timeout(Duration::from_millis(250), &mut second);
        assert!(still_waiting.await.is_err());
        drop(first);
        second.await.unwrap().unwrap();
    }
}
