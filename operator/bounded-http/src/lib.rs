//! Serves HTTP/1 on a port that any client can reach, within bounds.
//!
//! The number of connections is bounded. If there are too many, the server closes the oldest one
//! and never refuses the newest: idle connections cannot keep a probe of the kubelet from its
//! answer. Each connection serves one request. It ends if its client takes no bytes for a while,
//! so a slow client may take long and a silent one may not.

mod connections;
mod counted;

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use self::connections::Connections;
use self::counted::{Counted, Written};

/// Maximum size of a request's headers.
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Pause after an accept that failed, for example because no file descriptor is free.
const ERROR_PAUSE: Duration = Duration::from_millis(100);
/// Minimum time between two reports of such errors.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

type BoxError = Box<dyn Error + Send + Sync>;

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Time in which the headers of a request must arrive.
    pub header_timeout: Duration,
    /// Time in which a client must take some bytes of its answer.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 128,
            header_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(15),
        }
    }
}

/// Serves with a task for each connection until the returned future is dropped, which closes all
/// connections. `report` receives errors of `accept`, at most one a minute.
pub async fn serve<S>(
    listener: TcpListener,
    limits: Limits,
    service: S,
    report: impl Fn(&io::Error),
) -> Infallible
where
    S: HttpService<Incoming, ResBody: Body<Data: Send, Error: Into<BoxError>> + Send + 'static>,
    S: Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    let start = |stream| tokio::spawn(answer(stream, service.clone(), limits)).abort_handle();
    accept(listener, limits, start, report).await
}

/// Serves as [`serve`], with a task of the caller for each connection, such as one that stays on
/// its thread. `start` spawns a task that [answers](answer).
pub async fn accept(
    listener: TcpListener,
    limits: Limits,
    start: impl Fn(TcpStream) -> AbortHandle,
    report: impl Fn(&io::Error),
) -> Infallible {
    let mut connections = Connections::new(limits.max_connections);
    let mut reported_at: Option<Instant> = None;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => connections.push(start(stream)),
            Err(error) => {
                if reported_at.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
                    report(&error);
                    reported_at = Some(Instant::now());
                }
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}

/// Answers one request. It returns no error: what fails here is the client's connection.
pub async fn answer<S>(stream: impl AsyncRead + AsyncWrite + Unpin, service: S, limits: Limits)
where
    S: HttpService<Incoming>,
    S::Error: Into<BoxError>,
    S::ResBody: 'static,
    <S::ResBody as Body>::Error: Into<BoxError>,
{
    let written = Written::default();
    let stream = Counted::new(stream, written.clone());
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .keep_alive(false)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    loop {
        let before = written.num_bytes();
        let ended = tokio::time::timeout(limits.idle_timeout, connection.as_mut()).await;
        if ended.is_ok() || written.num_bytes() == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use hyper_util::service::TowerToHyperService;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    const BODY: usize = 1 << 20;
    const PIECE: usize = 1 << 17;

    #[tokio::test]
    async fn idle_connections_do_not_keep_a_probe_from_its_answer() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits::default();
        let router = Router::new().route("/healthz", get(|| async { "ok\n" }));
        let service = TowerToHyperService::new(router);
        let server = tokio::spawn(serve(listener, limits, service, |_| {}));
        let mut idle = Vec::new();
        for _ in 0..2 * limits.max_connections {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: operator\r\n\r\n";
        probe.write_all(request).await.unwrap();
        let mut text = String::new();
        probe.read_to_string(&mut text).await.unwrap();
        assert!(
            text.starts_with("HTTP/1.1 200") && text.ends_with("ok\n"),
            "{text}"
        );
        // The server has closed the oldest one.
        assert_eq!(idle[0].read(&mut [0]).await.unwrap_or(0), 0);
        server.abort();
    }

    /// A client that has asked for an answer that fits into no buffer.
    async fn client() -> DuplexStream {
        let (mut client, server) = tokio::io::duplex(PIECE);
        let router = Router::new().route("/", get(|| async { vec![0_u8; BODY] }));
        let service = TowerToHyperService::new(router);
        tokio::spawn(answer(server, service, Limits::default()));
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .unwrap();
        client
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_gets_its_answer() {
        let mut client = client().await;
        let mut num_bytes = 0;
        let idle_timeout = Limits::default().idle_timeout;
        let started = tokio::time::Instant::now();
        loop {
            let mut piece = vec![0; PIECE];
            match client.read(&mut piece).await.unwrap() {
                0 => break,
                more => num_bytes += more,
            }
            tokio::time::sleep(idle_timeout / 2).await;
        }
        assert!(num_bytes > BODY, "the head and the body");
        assert!(started.elapsed() > 2 * idle_timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_closed() {
        let mut client = client().await;
        tokio::time::sleep(3 * Limits::default().idle_timeout).await;
        let mut taken = Vec::new();
        client.read_to_end(&mut taken).await.unwrap();
        assert!(taken.len() < BODY, "{} bytes", taken.len());
    }
}
