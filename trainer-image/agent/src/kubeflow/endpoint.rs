//! The HTTP endpoint. A training loop waits for the answer of each post, so the endpoint answers at
//! once, and it has a thread of its own: posts delay neither probes nor the supervision.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use roundhouse_bounded_http::Limits;

use super::access::HOST;
use super::{Received, Reports, report};
use crate::http::server;
use crate::say::say;

const PATH: &str = "/trainer-status";
/// Maximum size of a post, as Kubeflow's own server limits it.
const MAX_BYTES: usize = 64 << 10;
/// The callback of Transformers waits as long for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
const LIMITS: Limits = Limits {
    max_connections: 128,
    header_timeout: TIMEOUT,
    idle_timeout: TIMEOUT,
};

/// Starts to listen on a free port and serves until the process ends. Returns the URL.
pub(super) async fn start(reports: Reports) -> io::Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let address = server::start("posts", address, LIMITS, router(reports)).await?;
    Ok(format!("http://{HOST}:{}{PATH}", address.port()))
}

fn router(reports: Reports) -> Router {
    Router::new()
        .route(PATH, post(receive))
        .layer(DefaultBodyLimit::max(MAX_BYTES))
        .with_state(reports)
}

async fn receive(
    State(reports): State<Reports>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let read = match body {
        Ok(body) => report::read(&body).map_err(|error| (StatusCode::UNPROCESSABLE_ENTITY, error)),
        Err(rejection) => Err((rejection.status(), rejection.body_text())),
    };
    match reports.receive(bearer(&headers), read) {
        Received::Taken => "ok\n".into_response(),
        Received::Unreadable {
            local_rank,
            why: (status, reason),
            is_first,
        } => {
            if is_first {
                say(&format!(
                    "cannot read the progress that process {local_rank} has posted: {reason}"
                ));
            }
            (status, format!("{reason}\n")).into_response()
        }
        Received::UnknownToken { is_first } => {
            if is_first {
                say("refused a post of progress without the token of a running process");
            }
            (StatusCode::FORBIDDEN, "send the token of the process\n").into_response()
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    value.strip_prefix("Bearer ").map(str::trim)
}
