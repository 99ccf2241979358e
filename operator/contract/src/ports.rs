//! TCP ports inside a worker's pod.

/// The rendezvous store of the worker's process 0 (a c10d `TCPStore`).
pub const RENDEZVOUS: u16 = 29_500;
/// The agent's HTTP server: [`METRICS_PATH`], [`PROGRESS_PATH`], [`HEALTHZ_PATH`], [`READYZ_PATH`].
pub const AGENT_HTTP: u16 = 9_464;
/// Name of [`RENDEZVOUS`] in pods and services.
pub const RENDEZVOUS_NAME: &str = "rendezvous";
/// Name of [`AGENT_HTTP`] in pods and services.
pub const AGENT_HTTP_NAME: &str = "metrics";

/// Prometheus text of the agent and all its ranks.
pub const METRICS_PATH: &str = "/metrics";
/// [`crate::Progress`] as JSON; 204 before the first step.
pub const PROGRESS_PATH: &str = "/progress";
/// 200 while the agent runs.
pub const HEALTHZ_PATH: &str = "/healthz";
/// 200 once every process is in the lobby or trains.
pub const READYZ_PATH: &str = "/readyz";
