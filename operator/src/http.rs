//! The operator's own HTTP: metrics, health, readiness.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::{Registry, TextEncoder};

use crate::context::Context;

/// The routes.
pub fn router(context: Arc<Context>, registry: Registry) -> Router {
    let ready = get(|State(context): State<Arc<Context>>| async move {
        if context.is_synced() {
            (StatusCode::OK, "ok\n")
        } else {
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "the caches are not filled yet\n",
            )
        }
    });
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", ready)
        .route("/metrics", get(move || async move { render(&registry) }))
        .with_state(context)
}

fn render(registry: &Registry) -> Response {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
