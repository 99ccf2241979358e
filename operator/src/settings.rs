//! The operator's settings, from the command line and the environment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};
use roundhouse_planner::gpu;

use crate::controller::resources::network_policy::Peers;
use crate::memory::repairs::Pauses;
use crate::runtime::leader_election;
use crate::watch::client::WatchTimeouts;
use crate::watch::lost_nodes::NodeTiming;

/// Runs TrainingJobs: creates their pods, gives each worker its rank, and reports progress.
///
/// It finds the cluster as kubectl does (KUBECONFIG, ~/.kube/config) or, in a pod, by the service
/// account.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Settings {
    /// Image of workers whose template names none.
    #[arg(long, env = "ROUNDHOUSE_TRAINER_IMAGE",
          default_value = concat!("ghcr.io/roundhouse/roundhouse-trainer:", env!("CARGO_PKG_VERSION")))]
    pub trainer_image: String,
    /// Pull policy of that image.
    #[arg(long, env = "ROUNDHOUSE_TRAINER_PULL_POLICY", default_value = "IfNotPresent",
          value_parser = ["Always", "IfNotPresent", "Never"])]
    pub trainer_pull_policy: String,
    /// Architecture of the nodes for workers with a container of that image, as in the label
    /// `kubernetes.io/arch`. Empty: any, for an image of several architectures. A `nodeSelector` of
    /// the job's template takes precedence.
    #[arg(long, env = "ROUNDHOUSE_TRAINER_ARCHITECTURE", default_value = "amd64")]
    pub trainer_architecture: String,
    /// Extended resources that are whole GPUs, separated by commas. A worker has one process for
    /// each GPU that its trainer container requests.
    #[arg(
        long,
        env = "ROUNDHOUSE_GPU_RESOURCES",
        default_value = gpu::USUAL
    )]
    pub gpu_resources: gpu::Listed,
    /// Run containers of the trainer image as its user, 65532. With false they have no user, group
    /// and fsGroup, and the platform chooses them, as OpenShift does.
    #[arg(long, env = "ROUNDHOUSE_FIXED_USERS", default_value_t = true, action = ArgAction::Set)]
    pub fixed_users: bool,
    /// Run the jobs of one namespace only. Default: all namespaces.
    #[arg(long, env = "ROUNDHOUSE_NAMESPACE")]
    pub namespace: Option<String>,
    /// Watch which nodes are cordoned or about to be removed, so that their workers leave first
    /// when a job is scaled down. Also read the nodes of pods that are not Ready for long, to
    /// replace workers on a lost node, and the labels of nodes that run workers of a job with a
    /// topology.
    #[arg(long, env = "ROUNDHOUSE_WATCH_NODES", default_value_t = true, action = ArgAction::Set)]
    pub watch_nodes: bool,
    /// Seconds after which a worker is replaced if its node has stopped answering while other nodes
    /// answer. If the node returns before that, the worker keeps its pod and its state.
    #[arg(long, env = "ROUNDHOUSE_LOST_NODE_SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=300))]
    pub lost_node_seconds: u32,
    /// YAML file with what jobs may use beyond their own objects: the chart's value `policy`.
    /// Without it: nothing.
    #[arg(long, env = "ROUNDHOUSE_POLICY_FILE")]
    pub policy_file: Option<PathBuf>,
    /// The policy as this operator first read it. An operator that restarts because it lost its
    /// Lease keeps it, because the file may belong to a newer version by then.
    #[arg(long, env = POLICY_AS_READ, hide = true)]
    pub policy_as_read: Option<String>,
    /// Peers that may read the metrics of workers, as JSON of a NetworkPolicy's `from`. The
    /// operator must be one of them. Default: all.
    #[arg(long, env = "ROUNDHOUSE_WORKER_METRICS_FROM", default_value = "[]")]
    pub worker_metrics_from: Peers,
    /// Address of /metrics, /healthz and /readyz. Default: all IPv6 and IPv4 addresses.
    #[arg(long, env = "ROUNDHOUSE_HTTP_ADDRESS", default_value = "[::]:8080")]
    pub http_address: SocketAddr,
    /// Format of the log messages.
    #[arg(long, env = "ROUNDHOUSE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Least severe messages that are logged. The variable `RUST_LOG`, if set, takes precedence,
    /// per module.
    #[arg(long, env = "ROUNDHOUSE_LOG_LEVEL", value_enum, default_value_t = LogLevel::Info)]
    pub log_level: LogLevel,
    /// When the nodes of pods that are not Ready are read.
    #[arg(skip)]
    pub lost_nodes: NodeTiming,
    /// How long the operator waits for the watches.
    #[arg(skip)]
    pub patience: WatchTimeouts,
    /// The pauses between two repairs of one object.
    #[arg(skip)]
    pub pauses: Pauses,
    /// Name of the Lease that decides which of several operators works on the jobs; the others
    /// stand by. Default: none, for a single operator.
    #[arg(long, env = "ROUNDHOUSE_LEASE")]
    pub lease: Option<String>,
    /// Namespace of the Lease. Default: that of the pod, or of the kubeconfig.
    #[arg(long, env = "ROUNDHOUSE_LEASE_NAMESPACE", requires = "lease")]
    pub lease_namespace: Option<String>,
    /// How long the Lease lasts, and when it is renewed.
    #[arg(skip)]
    pub lease_timing: leader_election::LeaseTiming,
    /// Number of jobs that are reconciled at the same time.
    #[arg(long, env = "ROUNDHOUSE_CONCURRENCY", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub concurrency: u16,
}

impl Settings {
    /// How long the operator waits for a worker whose node has stopped answering.
    #[must_use]
    pub fn lost_node_grace(&self) -> Duration {
        Duration::from_secs(self.lost_node_seconds.into())
    }
}

/// Environment variable by which an operator that restarts itself keeps its policy.
pub const POLICY_AS_READ: &str = "ROUNDHOUSE_POLICY_AS_READ";

/// The format of the log messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    /// One JSON object a line.
    Json,
}

/// Severity of log messages, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Failures that a person has to repair.
    Error,
    /// Failures that the operator tries again.
    Warn,
    /// Decisions, and what the operator did.
    Info,
    /// The reasons of the decisions.
    Debug,
    /// Everything, also from the libraries.
    Trace,
}

impl LogLevel {
    /// The level as a directive of `RUST_LOG`.
    #[must_use]
    pub const fn directive(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::EnvFilter;

    #[test]
    fn lost_node_grace_is_1_minute_by_default_and_at_most_5() {
        let read = |arguments: &[&str]| {
            let settings = Settings::try_parse_from([&["roundhouse-operator"], arguments].concat());
            settings.map(|it| it.lost_node_grace().as_secs()).ok()
        };
        assert_eq!(read(&[]), Some(60));
        assert_eq!(read(&["--lost-node-seconds=10"]), Some(10));
        assert_eq!(read(&["--lost-node-seconds=0"]), None);
        assert_eq!(read(&["--lost-node-seconds=301"]), None);
    }

    #[test]
    fn each_log_level_is_a_valid_filter_of_the_same_name() {
        for level in LogLevel::value_variants() {
            let name = level
                .to_possible_value()
                .map(|value| value.get_name().to_owned());
            assert_eq!(name.as_deref(), Some(level.directive()));
            assert_eq!(
                EnvFilter::new(level.directive()).to_string(),
                level.directive()
            );
        }
    }
}
