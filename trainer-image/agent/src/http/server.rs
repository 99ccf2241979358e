//! Serves HTTP in its own thread, so that a client cannot delay the supervision of the processes.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use hyper_util::service::TowerToHyperService;
use roundhouse_bounded_http::{self as bounded_http, Limits};
use roundhouse_contract::ports;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::say::say;

/// How long to retry a port that is in use: the previous container of the pod may
/// still be closing it.
const BIND_DEADLINE: Duration = Duration::from_secs(10);

/// Starts to listen in a thread of this name and serves until the process ends. Returns the
/// address.
///
/// # Errors
/// Returns an error if the port stays in use or is not allowed, or if no thread can be started.
pub async fn start(
    thread: &str,
    address: SocketAddr,
    limits: Limits,
    router: Router,
) -> io::Result<SocketAddr> {
    let (report, reported) = oneshot::channel();
    std::thread::Builder::new()
        .name(thread.to_owned())
        .spawn(move || run(address, limits, router, report))?;
    reported
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

fn run(
    address: SocketAddr,
    limits: Limits,
    router: Router,
    report: oneshot::Sender<io::Result<SocketAddr>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = report.send(Err(error));
            return;
        }
    };
    runtime.block_on(async {
        let bound = bind(address).await;
        match bound.and_then(|listener| Ok((listener.local_addr()?, listener))) {
            Ok((address, listener)) => {
                let _ = report.send(Ok(address));
                serve(listener, limits, router).await;
            }
            Err(error) => {
                let _ = report.send(Err(error));
            }
        }
    });
}

async fn bind(mut address: SocketAddr) -> io::Result<TcpListener> {
    let deadline = Instant::now() + BIND_DEADLINE;
    loop {
        match TcpListener::bind(address).await {
            // Port 0 is any free port: then none is free.
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && address.port() != 0
                    && Instant::now() < deadline =>
            {
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

async fn serve(listener: TcpListener, limits: Limits, router: Router) {
    let service = TowerToHyperService::new(router);
    bounded_http::serve(listener, limits, service, |error| {
        say(&format!(
            "the HTTP server cannot accept connections: {error}"
        ));
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn used_port_is_retried_until_it_is_free() {
        let first = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let mut second = tokio::spawn(bind(first.local_addr().unwrap()));
        let still_waiting = tokio::time::timeout(Duration::from_millis(250), &mut second);
        assert!(still_waiting.await.is_err());
        drop(first);
        second.await.unwrap().unwrap();
    }
}
