//! TCP ports of a worker's pod, and addresses on which servers listen.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The rendezvous store of the worker's process 0 (a c10d `TCPStore`).
pub const RENDEZVOUS: u16 = 29_500;
/// Number of ports from [`RENDEZVOUS`] on that the scripts of successive generations use in turn.
pub const RENDEZVOUS_RANGE: u16 = 64;
/// The store of a replica of several pods, on its first process.
pub const REPLICA_STORE: u16 = 29_564;
/// First port of the connections between the processes of a replica of several pods; the process
/// with local rank `n` listens on the `n`-th after it.
pub const REPLICA_LINKS: u16 = 29_565;
/// First port on which the processes of different pods exchange copies of the state; one for each
/// local rank.
pub const PEER_COPIES: u16 = 29_629;
/// The agent's HTTP server, with [`METRICS_PATH`], [`PROGRESS_PATH`], [`RESTARTS_PATH`],
/// [`LEDGER_PATH`], [`TRACE_PATH`], [`HEALTHZ_PATH`] and [`READYZ_PATH`].
pub const AGENT_HTTP: u16 = 9_464;
/// Name of [`RENDEZVOUS`] in pods and services.
pub const RENDEZVOUS_NAME: &str = "rendezvous";
/// Name of [`AGENT_HTTP`] in pods and services.
pub const AGENT_HTTP_NAME: &str = "metrics";
/// Names of both ports in pods, the usual one first. The second name is for pods with another
/// container port of the first name.
pub const NAMES: [(u16, [&str; 2]); 2] = [
    (RENDEZVOUS, [RENDEZVOUS_NAME, "roundhouse-rdzv"]),
    (AGENT_HTTP, [AGENT_HTTP_NAME, "roundhouse-http"]),
];

/// Prometheus text of the agent and all its ranks.
pub const METRICS_PATH: &str = "/metrics";
/// [`crate::ProgressReport`] as JSON, with a [`crate::Progress`], or with [`crate::Formed`] while
/// there is none; 204 before any process has written its state.
pub const PROGRESS_PATH: &str = "/progress";
/// Header of requests to [`RESTARTS_PATH`], [`LEDGER_PATH`] and [`TRACE_PATH`]: the nonce of the
/// worker's membership. So only clients that may read the job or its pods use these paths, although
/// the port is open to scrapers; without the nonce the answer is 403.
pub const NONCE_HEADER: &str = "roundhouse-nonce";

/// [`crate::ProcessRestarts`] as JSON. Requires [`NONCE_HEADER`].
pub const RESTARTS_PATH: &str = "/restarts";
/// The last lines of the ledger, one JSON document per line: 404 if there is none, 503 while the
/// volume does not answer. The request requires [`NONCE_HEADER`].
pub const LEDGER_PATH: &str = "/ledger";
/// With `?steps=5`, asks the worker's first process for a trace of its next steps: 202, or 409
/// while there is a request, or 429 within a minute after the last one. Without a query, the last
/// trace as JSON for Perfetto: 503 while it is being written, 404 if there is none. Always 404 for
/// processes of a script. Requests require [`NONCE_HEADER`].
pub const TRACE_PATH: &str = "/trace";
/// The agent answers 200 while it runs.
pub const HEALTHZ_PATH: &str = "/healthz";
/// The agent answers 200 once every process is in the lobby or trains.
pub const READYZ_PATH: &str = "/readyz";

/// A port on all addresses of IPv6, which on Linux include those of IPv4.
#[must_use]
pub const fn everywhere(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)
}

/// The address to use instead if the kernel has no IPv6; `None` for another error.
#[must_use]
pub fn without_ipv6(address: SocketAddr, error: ErrorKind) -> Option<SocketAddr> {
    // The error of Linux without IPv6 has no kind in std. These two kinds have another cause.
    let is_other = matches!(error, ErrorKind::AddrInUse | ErrorKind::PermissionDenied);
    let is_everywhere = address.ip() == Ipv6Addr::UNSPECIFIED;
    let ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
    (is_everywhere && !is_other).then_some(ipv4)
}

/// Like [`on`], and `None` if `address` is not an IP address.
#[must_use]
pub fn at(address: &str, first: u16, local_rank: u32) -> Option<SocketAddr> {
    on(address.parse().ok()?, first, local_rank)
}

/// The socket of a process with this local rank, at the first of a range of ports of its pod;
/// `None` if there is no such port.
#[must_use]
pub fn on(address: IpAddr, first: u16, local_rank: u32) -> Option<SocketAddr> {
    let port = first.checked_add(u16::try_from(local_rank).ok()?)?;
    Some(SocketAddr::new(address, port))
}

/// The rendezvous port of a generation's scripts. It differs from the previous generation's, so
/// that a process that has not noticed the end of its generation finds no peer.
#[must_use]
pub fn of_generation(base: u16, generation: u64) -> u16 {
    let offset = u16::try_from(generation % u64::from(RENDEZVOUS_RANGE)).unwrap_or(0);
    base.saturating_add(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_falls_back_to_ipv4_without_ipv6() {
        let (all, one) = (everywhere(80), SocketAddr::from((Ipv6Addr::LOCALHOST, 80)));
        let ipv4 = SocketAddr::from(([0, 0, 0, 0], 80));
        let no_ipv6 = std::io::Error::from_raw_os_error(97).kind();
        let cases = [
            (all, no_ipv6, Some(ipv4)),
            (all, ErrorKind::AddrNotAvailable, Some(ipv4)),
            (all, ErrorKind::AddrInUse, None),
            (one, no_ipv6, None),
            (ipv4, no_ipv6, None),
        ];
        for (address, error, expected) in cases {
            assert_eq!(without_ipv6(address, error), expected, "{address} {error}");
        }
    }

    #[test]
    fn port_names_are_valid_in_kubernetes() {
        for name in NAMES.into_iter().flat_map(|(_, names)| names) {
            assert!(name.len() <= 15, "{name}");
        }
    }

    #[test]
    fn successive_generations_use_different_ports() {
        for generation in 1..200 {
            let port = of_generation(RENDEZVOUS, generation);
            assert_ne!(port, of_generation(RENDEZVOUS, generation + 1));
            assert!((RENDEZVOUS..RENDEZVOUS + RENDEZVOUS_RANGE).contains(&port));
        }
    }
}
