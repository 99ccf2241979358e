//! The operator under test: variants of its start, its metrics, and its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::Parser;
use kube::{Client, Config};
use prometheus::Registry;
use roundhouse_operator::memory::repairs::Pauses;
use roundhouse_operator::run::{RunError, run_with};
use roundhouse_operator::runtime::leader_election::LeaseTiming;
use roundhouse_operator::settings::Settings;
use roundhouse_operator::watch::client::WatchTimeouts;
use roundhouse_operator::watch::lost_nodes;
use roundhouse_tests::cluster::until;
use tempfile::NamedTempFile;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::cut_off::cut_off_after;
use super::lease_check::LeaseCheck;
use super::network::Network;
use super::{Environment, TIMEOUT};

/// The tenancy policy of operators in tests of other subjects.
const LENIENT: &str = "allow: {hostPaths: [/*]}";

impl Environment {
    /// Starts an operator. With `writes`, it is cut off after this many writes.
    pub(crate) fn operator(&self, writes: Option<u32>) -> Operator {
        self.start(
            LENIENT,
            Network::default(),
            writes,
            WatchTimeouts::default(),
            &[],
        )
    }

    /// Starts an operator with leader election.
    pub(crate) fn candidate(&self, terms: LeaseTiming) -> Operator {
        self.candidate_with_config(self.server.config("operator").unwrap(), terms)
    }

    /// Starts an operator with leader election that connects to the API server with `config`.
    pub(crate) fn candidate_with_config(&self, config: Config, terms: LeaseTiming) -> Operator {
        let lease = ["--lease=roundhouse", "--lease-namespace=ml"];
        self.start_with(
            config,
            LENIENT,
            Network::default(),
            None,
            &lease,
            |settings| {
                settings.lease_timing = terms;
            },
        )
    }

    /// Starts an operator of one namespace that connects to the API server with `config`.
    pub(crate) fn operator_of_namespace(&self, config: Config, namespace: &str) -> Operator {
        let namespace = format!("--namespace={namespace}");
        let network = Network::default();
        self.start_with(config, LENIENT, network, None, &[&namespace], |_| {})
    }

    /// Starts an operator of one namespace with leader election in this namespace. It connects to
    /// the API server with `config`.
    pub(crate) fn candidate_of_namespace(
        &self,
        config: Config,
        namespace: &str,
        terms: LeaseTiming,
    ) -> Operator {
        let only = format!("--namespace={namespace}");
        let of = format!("--lease-namespace={namespace}");
        let arguments = [&*only, "--lease=roundhouse", &of];
        let network = Network::default();
        self.start_with(config, LENIENT, network, None, &arguments, |settings| {
            settings.lease_timing = terms;
        })
    }

    /// Starts an operator with other pauses between two repairs of the same object.
    pub(crate) fn operator_with_repair_pauses(&self, pauses: Pauses) -> Operator {
        let config = self.server.config("operator").unwrap();
        let network = Network::default();
        self.start_with(config, LENIENT, network, None, &[], |settings| {
            settings.pauses = pauses;
        })
    }

    /// Starts an operator with other timeouts for lost nodes.
    pub(crate) fn operator_with_node_timing(&self, terms: lost_nodes::NodeTiming) -> Operator {
        let config = self.server.config("operator").unwrap();
        let network = Network::default();
        self.start_with(config, LENIENT, network, None, &[], |settings| {
            settings.lost_nodes = terms;
        })
    }

    /// Starts an operator with additional command line arguments.
    pub(crate) fn operator_with_arguments(&self, arguments: &[&str]) -> Operator {
        let (network, patience) = (Network::default(), WatchTimeouts::default());
        self.start(LENIENT, network, None, patience, arguments)
    }

    /// Starts an operator behind a network, with other timeouts for its watches.
    pub(crate) fn operator_behind_network(
        &self,
        network: Network,
        patience: WatchTimeouts,
    ) -> Operator {
        self.start(LENIENT, network, None, patience, &[])
    }

    /// Starts an operator with a tenancy policy.
    pub(crate) fn operator_with_policy(&self, policy: &str) -> Operator {
        self.start(
            policy,
            Network::default(),
            None,
            WatchTimeouts::default(),
            &[],
        )
    }

    /// Starts an operator with a tenancy policy that connects to the API server with `config`.
    pub(crate) fn operator_with_policy_and_config(&self, policy: &str, config: Config) -> Operator {
        self.start_with(config, policy, Network::default(), None, &[], |_| {})
    }

    fn start(
        &self,
        policy: &str,
        network: Network,
        writes: Option<u32>,
        patience: WatchTimeouts,
        more: &[&str],
    ) -> Operator {
        let config = self.server.config("operator").unwrap();
        self.start_with(config, policy, network, writes, more, |settings| {
            settings.patience = patience;
        })
    }

    fn start_with(
        &self,
        config: Config,
        policy: &str,
        network: Network,
        writes: Option<u32>,
        more: &[&str],
        change: impl FnOnce(&mut Settings),
    ) -> Operator {
        // A file per operator: another operator of the test may read its own at the same time.
        let file = NamedTempFile::new_in(self.directory.path()).unwrap();
        let (_, file) = file.keep().unwrap();
        std::fs::write(&file, policy).unwrap();
        let left = Arc::new(AtomicU32::new(writes.unwrap_or(u32::MAX)));
        let file = format!("--policy-file={}", file.display());
        let address = "--http-address=127.0.0.1:0";
        let arguments = [&["roundhouse-operator", address, &file], more].concat();
        let mut settings = Settings::parse_from(arguments);
        change(&mut settings);
        let duration = settings
            .lease
            .as_ref()
            .map(|_| settings.lease_timing.duration);
        let lease_check = LeaseCheck::new(duration);
        let client = lease_check.wrap(Client::try_from(config).unwrap());
        let client = network.wrap(cut_off_after(client, Arc::clone(&left)));
        let registry = Registry::new();
        let exposed = registry.clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let stopped = async move {
                let _ = stopped.await;
            };
            run_with(client, settings, exposed, stopped).await
        });
        Operator {
            left,
            network,
            lease_check,
            registry,
            stop: Some(stop),
            task,
        }
    }
}

/// An operator that runs in this process.
pub(crate) struct Operator {
    left: Arc<AtomicU32>,
    /// The network between the operator and the API server.
    pub(crate) network: Network,
    lease_check: LeaseCheck,
    pub(crate) registry: Registry,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), RunError>>,
}

/// The value of an exposed series, whose labels are in alphabetical order; `None` without the
/// series.
pub(crate) fn metric(registry: &Registry, series: &str) -> Option<f64> {
    roundhouse_operator::metrics::testing::value(registry, series)
}

impl Operator {
    /// The value of a series of this operator, see [`metric`].
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        metric(&self.registry, series)
    }

    /// Waits until a series has at least this value.
    pub(crate) async fn until_metric(&self, series: &str, least: f64) {
        until(series, TIMEOUT, || async {
            Ok(self.metric(series).filter(|value| *value >= least))
        })
        .await
        .unwrap();
    }

    /// The sum of all series of a histogram.
    pub(crate) fn total_seconds(&self, histogram: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == histogram);
        let series = family.unwrap().get_metric().iter();
        series
            .map(|series| series.get_histogram().get_sample_sum())
            .sum()
    }

    /// Whether the operator has used up the writes after which it is cut off.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    /// Drops all further writes of the operator, which get no response.
    pub(crate) fn cut_off(&self) {
        self.cut_off_after(0);
    }

    /// Drops the operator's writes after this many more.
    pub(crate) fn cut_off_after(&self, writes: u32) {
        self.left.store(writes, Ordering::SeqCst);
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.metric("roundhouse_operator_leader") == Some(1.0)
    }

    /// Whether the operator has exited without a request.
    pub(crate) fn has_exited(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits until the operator exits without a request.
    pub(crate) async fn wait_for_exit(mut self) -> Result<(), RunError> {
        (&mut self.task).await.unwrap()
    }

    /// Aborts the operator like SIGKILL: it finishes nothing.
    pub(crate) async fn kill(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    pub(crate) async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        (&mut self.task).await.unwrap().unwrap();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let panicked = self.metric("roundhouse_operator_reconciles_total{result=\"Panicked\"}");
        // In every test no reconcile may panic, and the operator writes only while it holds the
        // Lease.
        if !std::thread::panicking() {
            assert_eq!(panicked, None);
            assert_eq!(self.lease_check.violations(), [""; 0]);
        }
    }
}
