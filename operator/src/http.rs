//! The operator's own HTTP: metrics, health, readiness.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::{Registry, TextEncoder};

use crate::context::Context;
use crate::metrics::labels::Watched;

/// The routes.
pub fn router(context: Arc<Context>, registry: Registry) -> Router {
    let ready = get(|State(context): State<Arc<Context>>| async move {
        readiness(context.is_synced(), context.stale())
    });
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", ready)
        .route("/metrics", get(move || async move { render(&registry) }))
        .with_state(context)
}

/// Whether the operator knows how the jobs are.
fn readiness(is_synced: bool, stale: Option<(Watched, Duration)>) -> (StatusCode, String) {
    let unwell = StatusCode::SERVICE_UNAVAILABLE;
    match stale {
        _ if !is_synced => (unwell, "the caches are not filled yet\n".to_owned()),
        Some((kind, age)) => {
            let (kind, seconds) = (kind.as_str(), age.as_secs());
            let words = format!("the watch of {kind} has told nothing for {seconds} s\n");
            (unwell, words)
        }
        None => (StatusCode::OK, "ok\n".to_owned()),
    }
}

fn render(registry: &Registry) -> Response {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_whose_view_is_old_is_not_ready_and_says_which() {
        let old = Some((Watched::Pods, Duration::from_secs(95)));
        assert_eq!(readiness(true, None).0, StatusCode::OK);
        let (code, words) = readiness(true, old);
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(words, "the watch of pods has told nothing for 95 s\n");
        assert_eq!(readiness(false, None).0, StatusCode::SERVICE_UNAVAILABLE);
    }
}
