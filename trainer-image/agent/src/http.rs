//! HTTP of the worker: health, readiness, metrics, progress, restarts, the ledger, traces. The
//! handlers read files and write only the request for a trace.
//!
//! The port is open to scrapers, which often means to all pods of the cluster. All routes except
//! health, metrics and progress require the generation's nonce: see [`nonce`].
//!
//! The server runs in its own thread (see [`server`]), so a handler may block on a file of the run
//! directory, which is in memory. A shared volume may not answer for minutes: see [`ledger`].

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use roundhouse_contract::{Formed, ProgressReport, RankStatus, ports};

use crate::metrics::Metrics;
use crate::options::Options;
use crate::ranks;

mod ledger;
mod nonce;
pub mod server;
mod trace;

use ledger::Ledgers;
use trace::Traces;
pub(crate) use trace::remove_traces;

/// The data that the handlers read.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Options of the command line.
    pub options: Arc<Options>,
    /// Metrics of the agent itself.
    pub metrics: Arc<Metrics>,
}

/// Returns the router with all routes.
pub fn router(shared: Shared) -> Router {
    let traces = Arc::new(Traces::new(&shared.options));
    let ledgers = Ledgers::new(shared.options.checkpoint.dir());
    let private = Router::new()
        .route(ports::RESTARTS_PATH, get(restarts))
        .route(ports::LEDGER_PATH, get(ledger::ledger).with_state(ledgers))
        .route(ports::TRACE_PATH, get(trace::trace).with_state(traces))
        .route_layer(from_fn_with_state(shared.clone(), nonce::is_known));
    Router::new()
        .route(ports::HEALTHZ_PATH, get(|| async { "ok\n" }))
        .route(ports::READYZ_PATH, get(readyz))
        .route(ports::METRICS_PATH, get(metrics))
        .route(ports::PROGRESS_PATH, get(progress))
        .merge(private)
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
        "not ready yet: processes {waiting:?} of {}\n",
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
    let statuses = (0..options.procs).filter_map(|local| ranks::status(&options.run_dir, local));
    let statuses: Vec<RankStatus> = statuses.collect();
    let job_uid = options.job_uid().map(str::to_owned);
    if let Some(report) = statuses.iter().find_map(|status| status.progress.clone()) {
        return axum::Json(ProgressReport { job_uid, report }).into_response();
    }
    let formed = statuses.iter().map(|status| status.generation).max();
    formed.map_or_else(
        || StatusCode::NO_CONTENT.into_response(),
        |formed| {
            let report = Formed { formed };
            axum::Json(ProgressReport { job_uid, report }).into_response()
        },
    )
}

async fn restarts(
    State(Shared {
        options,
        metrics: _,
    }): State<Shared>,
) -> Response {
    axum::Json(ranks::restarts(&options.run_dir, options.procs)).into_response()
}
