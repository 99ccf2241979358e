//! Serves HTTP to whoever reaches the port, within bounds: connections that do nothing can neither fill the operator's memory
//! nor keep a probe of the kubelet from its answer. When there are too many, the oldest one is closed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// Most connections at a time.
pub(super) const MAX_CONNECTIONS: usize = 128;
/// Time for the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a connection, which serves one request. Metrics of ten thousand jobs take less than a second.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of a request's headers.
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Pause after an accept that failed, as for want of descriptors.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// Between two words about such errors.
const TELL_AGAIN: Duration = Duration::from_mins(1);

/// Serves until the future is dropped.
pub(crate) async fn serve(listener: TcpListener, router: Router) -> Infallible {
    // All end with the set.
    let mut connections = JoinSet::new();
    let mut oldest_first = VecDeque::new();
    let mut told = None;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if told.is_none_or(|at: Instant| at.elapsed() >= TELL_AGAIN) {
                    tracing::error!(%error, "no connection is accepted: probes and metrics have no answer");
                    told = Some(Instant::now());
                }
                sleep(AFTER_ERROR).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        oldest_first.retain(|connection: &tokio::task::AbortHandle| !connection.is_finished());
        if oldest_first.len() >= MAX_CONNECTIONS
            && let Some(oldest) = oldest_first.pop_front()
        {
            oldest.abort();
        }
        oldest_first.push_back(connections.spawn(answer(stream, router.clone())));
    }
}

/// Answers one request. An error is the client's.
async fn answer(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let _ = timeout(TIMEOUT, connection).await;
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn idle_connections_do_not_keep_a_probe_from_its_answer() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/healthz", get(|| async { "ok\n" }));
        let server = tokio::spawn(serve(listener, router));
        let mut idle = Vec::new();
        for _ in 0..2 * MAX_CONNECTIONS {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: operator\r\n\r\n";
        probe.write_all(request).await.unwrap();
        let mut answer = String::new();
        probe.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"),
            "{answer}"
        );
        // The oldest one was closed.
        let mut byte = [0];
        assert_eq!(idle[0].read(&mut byte).await.unwrap_or(0), 0);
        server.abort();
    }
}
