//! Serves HTTP in a thread of its own, so that a client cannot hold up the supervision of the processes.
//!
//! The port is open to every pod that the NetworkPolicy lets in. So the number of connections is bounded, and each has
//! little time to take the next bytes: when there are too many, the oldest one is closed, never the newest refused.
//! Idle connections therefore cannot keep a probe of the kubelet from its answer.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use roundhouse_contract::ports;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

mod counted;

use counted::{Counted, Written};

/// How long a taken port is tried again: the last container of the pod may still be closing it.
const BIND_DEADLINE: Duration = Duration::from_secs(10);
/// Most connections at a time.
const MAX_CONNECTIONS: usize = 128;
/// Time for the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time in which a connection must have taken some bytes of its answer. Each serves one request.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);
/// Most bytes of a request's headers.
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Pause after an accept that failed, as for want of descriptors.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// Listens, and serves until the process ends. Returns the address.
///
/// # Errors
/// The port stays taken or may not be used, or there is no thread.
pub async fn start(address: SocketAddr, router: Router) -> io::Result<SocketAddr> {
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new()
        .name("http".to_owned())
        .spawn(move || run(address, router, tell))?;
    told.await
        .unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

fn run(address: SocketAddr, router: Router, tell: oneshot::Sender<io::Result<SocketAddr>>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = tell.send(Err(error));
            return;
        }
    };
    runtime.block_on(async {
        let bound = bind(address).await;
        match bound.and_then(|listener| Ok((listener.local_addr()?, listener))) {
            Ok((address, listener)) => {
                let _ = tell.send(Ok(address));
                serve(listener, router).await;
            }
            Err(error) => {
                let _ = tell.send(Err(error));
            }
        }
    });
}

async fn bind(mut address: SocketAddr) -> io::Result<TcpListener> {
    let deadline = Instant::now() + BIND_DEADLINE;
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => match ports::without_ipv6(address, error.kind()) {
                Some(ipv4) => address = ipv4,
                None => return Err(error),
            },
            result => return result,
        }
    }
}

async fn serve(listener: TcpListener, router: Router) {
    let mut open = VecDeque::<AbortHandle>::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                make_room(&mut open);
                let task = tokio::spawn(answer(stream, router.clone()));
                open.push_back(task.abort_handle());
            }
            Err(_) => tokio::time::sleep(AFTER_ERROR).await,
        }
    }
}

/// Closes the oldest connections until there is room for one more.
fn make_room(open: &mut VecDeque<AbortHandle>) {
    if open.len() < MAX_CONNECTIONS {
        return;
    }
    open.retain(|connection| !connection.is_finished());
    while open.len() >= MAX_CONNECTIONS {
        if let Some(oldest) = open.pop_front() {
            oldest.abort();
        }
    }
}

/// Answers one request. An error is the client's.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let written = Written::default();
    let stream = Counted::new(stream, written.clone());
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    loop {
        let before = written.num_bytes();
        let ended = tokio::time::timeout(WRITE_TIMEOUT, connection.as_mut()).await;
        if ended.is_ok() || written.num_bytes() == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

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

    #[tokio::test]
    async fn the_oldest_connections_make_room_for_new_ones() {
        let tasks: Vec<_> = (0..=MAX_CONNECTIONS)
            .map(|_| tokio::spawn(std::future::pending::<()>()))
            .collect();
        let mut open = VecDeque::new();
        for task in &tasks {
            make_room(&mut open);
            open.push_back(task.abort_handle());
        }
        assert_eq!(open.len(), MAX_CONNECTIONS);
        tokio::task::yield_now().await;
        let closed: Vec<bool> = tasks
            .iter()
            .map(tokio::task::JoinHandle::is_finished)
            .collect();
        assert_eq!(closed.iter().position(|closed| *closed), Some(0));
        assert_eq!(closed.iter().filter(|closed| **closed).count(), 1);
    }
    const BODY: usize = 1 << 20;
    const PIECE: usize = 1 << 17;

    /// A client of an answer that does not fit into any buffer, which has asked for it.
    async fn client() -> DuplexStream {
        let (mut client, server) = tokio::io::duplex(PIECE);
        let router = Router::new().route("/", get(|| async { vec![0_u8; BODY] }));
        tokio::spawn(answer(server, router));
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        client.write_all(request).await.unwrap();
        client
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_transfer_may_last_longer_than_a_connection_may_be_idle() {
        let mut client = client().await;
        let mut num_bytes = 0;
        let started = tokio::time::Instant::now();
        loop {
            let mut piece = vec![0; PIECE];
            match client.read(&mut piece).await.unwrap() {
                0 => break,
                more => num_bytes += more,
            }
            tokio::time::sleep(WRITE_TIMEOUT / 2).await;
        }
        assert!(num_bytes > BODY, "the head and the body");
        assert!(started.elapsed() > 2 * WRITE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_closed() {
        let mut client = client().await;
        tokio::time::sleep(3 * WRITE_TIMEOUT).await;
        let mut taken = Vec::new();
        client.read_to_end(&mut taken).await.unwrap();
        assert!(taken.len() < BODY, "{} bytes", taken.len());
    }
}
