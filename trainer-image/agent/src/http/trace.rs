//! `GET /trace?steps=5` asks the worker's first process for a trace of its next training steps.
//! `GET /trace` returns it in the format of Perfetto.
//!
//! The port is open, so the cost is bounded: one request at a time, one per minute, and one file on
//! a disk that the next request removes. The process bounds the recording itself.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use roundhouse_contract::{TraceRequest, paths};
use tokio::fs::File;

use crate::options::Options;

mod directory;
mod pieces;

use pieces::Pieces;

/// Minimum time between two requests.
const PAUSE: Duration = Duration::from_mins(1);
/// Time after which a client may ask again for an unfinished trace.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The process of this worker that is recorded.
const LOCAL_RANK: u32 = 0;

/// State of the handler.
#[derive(Debug)]
pub(super) struct Traces {
    runs_script: bool,
    request: PathBuf,
    directory: PathBuf,
    last: Mutex<Option<Instant>>,
}

/// The reason why there is no trace now.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the processes are those of a script of your own, which records no traces")]
    Script,
    #[error("steps must be between 1 and {}", TraceRequest::MOST_STEPS)]
    Steps,
    #[error("a trace is being recorded: GET /trace returns it")]
    Busy,
    #[error("traces are recorded once a minute: ask again in {} s", .0.as_secs() + 1)]
    TooSoon(Duration),
    #[error("the trace is being recorded: ask again")]
    NotYet,
    #[error(
        "there is no trace: ask with ?steps=5; if you have asked already, the worker's log has the reason"
    )]
    None,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, wait) = match &self {
            Self::Script | Self::None => (StatusCode::NOT_FOUND, None),
            Self::Steps => (StatusCode::BAD_REQUEST, None),
            Self::Busy => (StatusCode::CONFLICT, None),
            Self::TooSoon(left) => (
                StatusCode::TOO_MANY_REQUESTS,
                Some(*left + Duration::from_secs(1)),
            ),
            Self::NotYet => (StatusCode::SERVICE_UNAVAILABLE, Some(ASK_AGAIN)),
            Self::Io(_) => (StatusCode::INTERNAL_SERVER_ERROR, None),
        };
        let mut headers = HeaderMap::new();
        headers.extend(wait.map(|wait| (header::RETRY_AFTER, wait.as_secs().into())));
        (status, headers, format!("{self}\n")).into_response()
    }
}

impl Traces {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            runs_script: options.runs_script(),
            request: paths::rank_trace_request(&options.run_dir, LOCAL_RANK),
            directory: directory::of_this_process(),
            last: Mutex::new(None),
        }
    }

    fn result(&self) -> PathBuf {
        self.directory.join("trace.json")
    }

    /// Asks the process for a trace and removes the previous one. The process removes the request
    /// when it is done.
    fn ask(&self, num_steps: u32, now: Instant) -> Result<(), Refusal> {
        if self.request.exists() {
            return Err(Refusal::Busy);
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let left = last.and_then(|last| PAUSE.checked_sub(now.saturating_duration_since(last)));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            return Err(Refusal::TooSoon(left));
        }
        directory::make(&self.directory)?;
        let result = self.result();
        match std::fs::remove_file(&result) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        let request = TraceRequest { num_steps, result };
        let text = serde_json::to_string(&request).map_err(io::Error::from)?;
        let partial = self.request.with_extension("partial");
        std::fs::write(&partial, text)?;
        std::fs::rename(partial, &self.request)?;
        *last = Some(now);
        Ok(())
    }

    async fn open(&self) -> Result<Pieces, Refusal> {
        match File::open(self.result()).await {
            Ok(file) => Ok(Pieces::of(file).await?),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            Err(_) if self.request.exists() => Err(Refusal::NotYet),
            Err(_) => Err(Refusal::None),
        }
    }

    async fn answer(&self, query: &str, now: Instant) -> Result<Response, Refusal> {
        if self.runs_script {
            return Err(Refusal::Script);
        }
        let mut parts = query.split('&');
        let Some(steps) = parts.find_map(|part| part.strip_prefix("steps=")) else {
            let body = Body::new(self.open().await?);
            return Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response());
        };
        let steps = steps.parse().map_err(|_| Refusal::Steps)?;
        if !(1..=TraceRequest::MOST_STEPS).contains(&steps) {
            return Err(Refusal::Steps);
        }
        self.ask(steps, now)?;
        let words = "the process records its next training steps: GET /trace returns the trace when it is done\n";
        Ok((StatusCode::ACCEPTED, words).into_response())
    }
}

pub(super) async fn trace(
    State(traces): State<Arc<Traces>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let query = query.unwrap_or_default();
    let answer = traces.answer(&query, Instant::now()).await;
    answer.map_err(IntoResponse::into_response)
}

/// Removes the last trace when the agent ends, because no client can fetch it any more.
pub(crate) fn remove_traces() {
    let _ = std::fs::remove_dir_all(directory::of_this_process());
}

#[cfg(test)]
mod tests;
