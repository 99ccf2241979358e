//! The operator's own HTTP server: metrics, health and readiness.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::{Registry, TextEncoder};
use roundhouse_contract::ports;
use tokio::net::TcpListener;

use crate::metrics::labels::Watched;
use crate::watch::caches::Caches;
use crate::watch::staleness::Staleness;

mod serve;

pub(crate) use self::serve::serve;

/// Listens on an address. On a host without IPv6 it uses the IPv4 address instead.
///
/// # Errors
/// The address is in use, or the process may not listen on it.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) => match ports::without_ipv6(address, error.kind()) {
            Some(ipv4) => TcpListener::bind(ipv4).await,
            None => Err(error),
        },
        listener => listener,
    }
}

pub fn router(caches: Arc<Caches>, staleness: Arc<Staleness>, registry: Registry) -> Router {
    let ready =
        get(async move || readiness(caches.filled_at().is_some(), staleness.silent_watch()));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", ready)
        .route("/metrics", get(move || async move { render(&registry) }))
}

/// Whether the caches are filled and no watch is silent.
fn readiness(is_synced: bool, stale: Option<(Watched, Duration)>) -> (StatusCode, String) {
    let unwell = StatusCode::SERVICE_UNAVAILABLE;
    match stale {
        _ if !is_synced => (unwell, "the caches are not filled yet\n".to_owned()),
        Some((kind, age)) => {
            let (kind, seconds) = (kind.as_str(), age.as_secs());
            let words = format!("the watch of {kind} has received nothing for {seconds} s\n");
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
    use std::net::{Ipv4Addr, Ipv6Addr};

    use clap::Parser;
    use tokio::net::TcpStream;

    use super::*;
    use crate::settings::Settings;

    #[tokio::test]
    async fn default_address_serves_ipv4_and_ipv6() {
        let address = Settings::parse_from(["roundhouse-operator"]).http_address;
        let any_port = SocketAddr::new(address.ip(), 0);
        assert_eq!(address.port(), 8080);
        let listener = listen(any_port).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let ipv4 = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        assert!(ipv4.is_ok(), "{ipv4:?}");
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_ok() {
            let ipv6 = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await;
            assert!(ipv6.is_ok(), "{ipv6:?}");
        }
    }

    #[test]
    fn stale_watch_makes_the_operator_unready_and_is_named() {
        let old = Some((Watched::Pods, Duration::from_secs(95)));
        assert_eq!(readiness(true, None).0, StatusCode::OK);
        let (code, words) = readiness(true, old);
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(words, "the watch of pods has received nothing for 95 s\n");
        assert_eq!(readiness(false, None).0, StatusCode::SERVICE_UNAVAILABLE);
    }
}
