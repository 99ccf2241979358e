//! TCP ports inside a worker's pod, and where servers listen.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// The rendezvous store of the worker's process 0 (a c10d `TCPStore`).
pub const RENDEZVOUS: u16 = 29_500;
/// Ports from [`RENDEZVOUS`] on at which the scripts of successive generations meet.
pub const RENDEZVOUS_RANGE: u16 = 64;
/// The agent's HTTP server: [`METRICS_PATH`], [`PROGRESS_PATH`], [`RESTARTS_PATH`], [`LEDGER_PATH`], [`TRACE_PATH`],
/// [`HEALTHZ_PATH`], [`READYZ_PATH`].
pub const AGENT_HTTP: u16 = 9_464;
/// Name of [`RENDEZVOUS`] in pods and services.
pub const RENDEZVOUS_NAME: &str = "rendezvous";
/// Name of [`AGENT_HTTP`] in pods and services.
pub const AGENT_HTTP_NAME: &str = "metrics";
/// Names of both in pods, the usual one first. The other is for a container that has a port of its own with that name.
pub const NAMES: [(u16, [&str; 2]); 2] = [
    (RENDEZVOUS, [RENDEZVOUS_NAME, "roundhouse-rdzv"]),
    (AGENT_HTTP, [AGENT_HTTP_NAME, "roundhouse-http"]),
];

/// Prometheus text of the agent and all its ranks.
pub const METRICS_PATH: &str = "/metrics";
/// [`crate::Told`] as JSON, of a [`crate::Progress`], or of [`crate::Formed`] while there is none; 204 before any process
/// has told its state.
pub const PROGRESS_PATH: &str = "/progress";
/// Header of requests to [`RESTARTS_PATH`], [`LEDGER_PATH`] and [`TRACE_PATH`]: the nonce of the worker's membership
/// document. So only clients that may read the job or its pods use these paths, although the port is open to scrapers; without
/// it the answer is 403.
pub const NONCE_HEADER: &str = "roundhouse-nonce";

/// [`crate::ProcessRestarts`] as JSON. Requires [`NONCE_HEADER`].
pub const RESTARTS_PATH: &str = "/restarts";
/// The last lines of the ledger, one JSON document per line: 404 if there is none, 503 while the volume does not answer.
/// Requires [`NONCE_HEADER`].
pub const LEDGER_PATH: &str = "/ledger";
/// With `?steps=5`, asks the worker's first process for a trace of its next steps: 202, 409 while there is a request, 429
/// within a minute after the last one. Without a query, the last trace as JSON that Perfetto opens: 503 while it is being
/// made, 404 if there is none. Always 404 if the processes are those of a script. Requires [`NONCE_HEADER`].
pub const TRACE_PATH: &str = "/trace";
/// 200 while the agent runs.
pub const HEALTHZ_PATH: &str = "/healthz";
/// 200 once every process is in the lobby or trains.
pub const READYZ_PATH: &str = "/readyz";

/// A port on all addresses: those of IPv6, which on Linux are those of IPv4, too.
#[must_use]
pub const fn everywhere(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)
}

/// Where to listen instead if an address cannot be used because the kernel has no IPv6.
#[must_use]
pub fn without_ipv6(address: SocketAddr, error: ErrorKind) -> Option<SocketAddr> {
    // What Linux says without IPv6 has no kind in std. These two are about something else.
    let is_other = matches!(error, ErrorKind::AddrInUse | ErrorKind::PermissionDenied);
    let is_everywhere = address.ip() == Ipv6Addr::UNSPECIFIED;
    let ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
    (is_everywhere && !is_other).then_some(ipv4)
}

/// Where the scripts of a generation meet: not where those of the one before did, so that a process
/// which has not heard of its end finds nobody.
#[must_use]
pub fn of_generation(base: u16, generation: u64) -> u16 {
    let offset = u16::try_from(generation % u64::from(RENDEZVOUS_RANGE)).unwrap_or(0);
    base.saturating_add(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_all_addresses_listens_on_those_of_ipv4_where_there_is_no_ipv6() {
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
    fn names_of_ports_are_those_that_kubernetes_takes() {
        for name in NAMES.into_iter().flat_map(|(_, names)| names) {
            assert!(name.len() <= 15, "{name}");
        }
    }

    #[test]
    fn neighbouring_generations_meet_at_different_ports_of_the_range() {
        for generation in 1..200 {
            let port = of_generation(RENDEZVOUS, generation);
            assert_ne!(port, of_generation(RENDEZVOUS, generation + 1));
            assert!((RENDEZVOUS..RENDEZVOUS + RENDEZVOUS_RANGE).contains(&port));
        }
    }
}
