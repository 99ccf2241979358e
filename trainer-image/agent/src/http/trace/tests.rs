use std::future::poll_fn;
use std::pin::Pin;

use axum::body::{HttpBody, to_bytes};
use tempfile::TempDir;

use super::*;

struct Fixture {
    _root: TempDir,
    traces: Traces,
    now: Instant,
}

fn worker(runs_script: bool) -> Fixture {
    let root = tempfile::tempdir().unwrap();
    let traces = Traces {
        runs_script,
        request: paths::rank_trace_request(root.path(), LOCAL_RANK),
        directory: root.path().join("traces"),
        last: Mutex::new(None),
    };
    Fixture {
        _root: root,
        traces,
        now: Instant::now(),
    }
}

impl Fixture {
    async fn get(&self, query: &str) -> Response {
        let answer = self.traces.answer(query, self.now).await;
        answer.unwrap_or_else(IntoResponse::into_response)
    }

    async fn status(&self, query: &str) -> u16 {
        self.get(query).await.status().as_u16()
    }

    /// Writes the trace as the process does.
    fn process_writes(&self, bytes: &[u8]) {
        let text = std::fs::read_to_string(&self.traces.request).unwrap();
        let request: TraceRequest = serde_json::from_str(&text).unwrap();
        std::fs::write(request.result, bytes).unwrap();
        std::fs::remove_file(&self.traces.request).unwrap();
    }
}

#[tokio::test]
async fn trace_is_requested_recorded_and_sent() {
    let fixture = worker(false);
    assert_eq!(fixture.status("").await, 404);
    assert_eq!(fixture.status("a=b&steps=5").await, 202);
    assert_eq!(fixture.status("").await, 503, "not yet");
    fixture.process_writes(b"{}");
    for _ in 0..2 {
        let answer = fixture.get("").await;
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/json");
        assert_eq!(to_bytes(answer.into_body(), 10).await.unwrap(), "{}");
    }
}

#[tokio::test]
async fn number_of_trace_steps_is_bounded() {
    let fixture = worker(false);
    for query in ["steps=0", "steps=21", "steps=five", "steps=", "steps=-1"] {
        assert_eq!(fixture.status(query).await, 400, "{query}");
    }
    assert_eq!(fixture.status("steps=20").await, 202);
}

#[tokio::test]
async fn one_trace_request_at_a_time_and_per_minute() {
    let mut fixture = worker(false);
    assert_eq!(fixture.status("steps=5").await, 202);
    fixture.now += 2 * PAUSE;
    assert_eq!(fixture.status("steps=5").await, 409);
    fixture.process_writes(b"{}");
    assert_eq!(fixture.status("steps=5").await, 202);
    assert_eq!(
        fixture.status("").await,
        503,
        "the previous trace is removed"
    );
    fixture.process_writes(b"{}");
    fixture.now += PAUSE / 2;
    let answer = fixture.get("steps=5").await;
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.headers()[header::RETRY_AFTER], "31");
    assert_eq!(fixture.status("").await, 200, "the trace is still there");
    fixture.now += PAUSE / 2;
    assert_eq!(fixture.status("steps=5").await, 202);
}

#[tokio::test]
async fn script_has_no_traces() {
    let fixture = worker(true);
    for query in ["", "steps=5"] {
        assert_eq!(fixture.status(query).await, 404);
    }
    assert!(!fixture.traces.request.exists());
}

#[tokio::test]
async fn large_trace_is_sent_in_small_pieces() {
    let fixture = worker(false);
    assert_eq!(fixture.status("steps=5").await, 202);
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(1_000_000).collect();
    fixture.process_writes(&bytes);
    let mut body = fixture.get("").await.into_body();
    assert_eq!(body.size_hint().exact(), Some(1_000_000));
    let mut sent = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let piece = frame.unwrap().into_data().unwrap();
        assert!(piece.len() <= 64 << 10, "{} bytes", piece.len());
        sent.extend_from_slice(&piece);
    }
    assert!(sent == bytes);
}

#[tokio::test]
async fn truncated_trace_is_an_error() {
    let fixture = worker(false);
    assert_eq!(fixture.status("steps=5").await, 202);
    fixture.process_writes(&[0; 100]);
    let body = fixture.get("").await.into_body();
    std::fs::write(fixture.traces.result(), "").unwrap();
    assert!(to_bytes(body, 1_000).await.is_err());
}
