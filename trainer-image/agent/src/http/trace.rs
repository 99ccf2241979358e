//! `GET /trace?steps=5`: a trace of the next steps of the worker's first process, in the format that Perfetto opens.
//! `GET /trace`: the last one again.

use std::path::Path;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use roundhouse_contract::paths;

use super::Shared;

/// Most steps of a trace: it is in memory, and slows these steps down.
const MOST_STEPS: u32 = 20;
/// How long a request waits for its trace; the server closes a connection after 15 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it looks.
const PAUSE: Duration = Duration::from_millis(100);
/// Of the processes of this worker.
const LOCAL_RANK: u32 = 0;

pub(super) async fn trace(
    State(Shared {
        options,
        metrics: _,
    }): State<Shared>,
    RawQuery(query): RawQuery,
) -> Response {
    let run_dir = &options.run_dir;
    let Some(steps) = query.as_deref().and_then(steps) else {
        return found(run_dir).unwrap_or_else(|| {
            let words = "there is no trace: ask with ?steps=5\n";
            (StatusCode::NOT_FOUND, words).into_response()
        });
    };
    let Some(steps) = steps.filter(|steps| (1..=MOST_STEPS).contains(steps)) else {
        let words = format!("steps must be between 1 and {MOST_STEPS}\n");
        return (StatusCode::BAD_REQUEST, words).into_response();
    };
    if let Err(error) = ask(run_dir, steps) {
        return (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response();
    }
    let mut waited = Duration::ZERO;
    loop {
        if let Some(found) = found(run_dir) {
            return found;
        }
        if waited >= PATIENCE {
            let words = "the steps are not over yet: GET /trace has the trace when they are\n";
            return (StatusCode::ACCEPTED, words).into_response();
        }
        tokio::time::sleep(PAUSE).await;
        waited += PAUSE;
    }
}

/// The number of steps in a query; the inner `None` if it is none.
#[expect(
    clippy::option_option,
    reason = "no number is not the same as no query for one"
)]
fn steps(query: &str) -> Option<Option<u32>> {
    let mut parts = query.split('&');
    let text = parts.find_map(|part| part.strip_prefix("steps="))?;
    Some(text.parse().ok())
}

/// Asks the process, which removes the request when it begins. An earlier trace is forgotten.
fn ask(run_dir: &Path, steps: u32) -> std::io::Result<()> {
    let _ = std::fs::remove_file(paths::rank_trace(run_dir, LOCAL_RANK));
    let request = paths::rank_trace_request(run_dir, LOCAL_RANK);
    let partial = request.with_extension("partial");
    std::fs::write(&partial, steps.to_string())?;
    std::fs::rename(partial, request)
}

fn found(run_dir: &Path) -> Option<Response> {
    let text = std::fs::read(paths::rank_trace(run_dir, LOCAL_RANK)).ok()?;
    Some(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_steps_is_read_from_the_query() {
        for (query, expected) in [
            ("steps=5", Some(Some(5))),
            ("a=b&steps=5", Some(Some(5))),
            ("steps=five", Some(None)),
            ("", None),
        ] {
            assert_eq!(steps(query), expected, "{query}");
        }
    }

    #[test]
    fn a_request_replaces_the_trace_before_it() {
        let run_dir = tempfile::tempdir().unwrap();
        let result = paths::rank_trace(run_dir.path(), 0);
        assert!(found(run_dir.path()).is_none());
        std::fs::write(&result, "{}").unwrap();
        assert!(found(run_dir.path()).is_some());
        ask(run_dir.path(), 5).unwrap();
        assert!(
            found(run_dir.path()).is_none(),
            "it is that of another time"
        );
        let request = paths::rank_trace_request(run_dir.path(), 0);
        assert_eq!(std::fs::read_to_string(request).unwrap(), "5");
    }
}
