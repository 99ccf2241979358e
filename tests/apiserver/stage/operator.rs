//! The operator under test: how it is started, what it has written, and how it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::Parser;
use kube::{Client, Config};
use prometheus::Registry;
use roundhouse_operator::memory::repairs::Pauses;
use roundhouse_operator::run::{RunError, run_with};
use roundhouse_operator::runtime::leader_election::Terms;
use roundhouse_operator::settings::Settings;
use roundhouse_operator::watch::client::WatchTimeouts;
use roundhouse_operator::watch::lost_nodes;
use tempfile::NamedTempFile;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Stage;
use super::cut_off::cut_off_after;
use super::lease_check::LeaseCheck;
use crate::network::Network;

/// The policy of an operator whose tests are about something else.
const LENIENT: &str = "allow: {hostPaths: [/*]}";

impl Stage {
    /// An operator; `writes`: it is cut off after so many.
    pub(crate) fn operator(&self, writes: Option<u32>) -> Operator {
        self.start(
            LENIENT,
            Network::default(),
            writes,
            WatchTimeouts::default(),
            &[],
        )
    }

    /// One of several operators.
    pub(crate) fn candidate(&self, terms: Terms) -> Operator {
        self.candidate_through(self.server.config("operator").unwrap(), terms)
    }

    /// One of several operators, which reaches the API server in another way.
    pub(crate) fn candidate_through(&self, config: Config, terms: Terms) -> Operator {
        let lease = ["--lease=roundhouse", "--lease-namespace=ml"];
        self.start_with(
            config,
            LENIENT,
            Network::default(),
            None,
            &lease,
            |settings| {
                settings.lease_terms = terms;
            },
        )
    }

    /// An operator of one namespace that reaches the API server in another way.
    pub(crate) fn operator_through(&self, config: Config, namespace: &str) -> Operator {
        let namespace = format!("--namespace={namespace}");
        let network = Network::default();
        self.start_with(config, LENIENT, network, None, &[&namespace], |_| {})
    }

    /// An operator of one namespace that needs a Lease there, and reaches the API server in another way.
    pub(crate) fn candidate_of(&self, config: Config, namespace: &str, terms: Terms) -> Operator {
        let only = format!("--namespace={namespace}");
        let of = format!("--lease-namespace={namespace}");
        let arguments = [&*only, "--lease=roundhouse", &of];
        let network = Network::default();
        self.start_with(config, LENIENT, network, None, &arguments, |settings| {
            settings.lease_terms = terms;
        })
    }

    /// An operator with other pauses between two repairs of one object.
    pub(crate) fn operator_that_repairs(&self, pauses: Pauses) -> Operator {
        let config = self.server.config("operator").unwrap();
        let network = Network::default();
        self.start_with(config, LENIENT, network, None, &[], |settings| {
            settings.pauses = pauses;
        })
    }

    /// An operator with other times for nodes that may be lost.
    pub(crate) fn operator_that_doubts(&self, terms: lost_nodes::Terms) -> Operator {
        let config = self.server.config("operator").unwrap();
        let network = Network::default();
        self.start_with(config, LENIENT, network, None, &[], |settings| {
            settings.lost_nodes = terms;
        })
    }

    /// An operator with more arguments.
    pub(crate) fn operator_of(&self, arguments: &[&str]) -> Operator {
        let (network, patience) = (Network::default(), WatchTimeouts::default());
        self.start(LENIENT, network, None, patience, arguments)
    }

    /// An operator behind a network, with other times for its watches.
    pub(crate) fn operator_behind(&self, network: Network, patience: WatchTimeouts) -> Operator {
        self.start(LENIENT, network, None, patience, &[])
    }

    /// An operator with an administrator's policy.
    pub(crate) fn operator_with(&self, policy: &str) -> Operator {
        self.start(
            policy,
            Network::default(),
            None,
            WatchTimeouts::default(),
            &[],
        )
    }

    /// An operator with an administrator's policy that reaches the API server in another way.
    pub(crate) fn operator_with_through(&self, policy: &str, config: Config) -> Operator {
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
        // One for each: another operator may read its own in this moment.
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
            .map(|_| settings.lease_terms.duration);
        let lease_check = LeaseCheck::new(duration);
        let client = lease_check.of(Client::try_from(config).unwrap());
        let client = network.before(cut_off_after(client, Arc::clone(&left)));
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

/// A running operator.
pub(crate) struct Operator {
    left: Arc<AtomicU32>,
    /// Between it and the API server.
    pub(crate) network: Network,
    lease_check: LeaseCheck,
    /// Where its metrics are.
    pub(crate) registry: Registry,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), RunError>>,
}

/// The value of a series as it is exposed, labels in the order of their names; `None` if there is none.
pub(crate) fn metric(registry: &Registry, series: &str) -> Option<f64> {
    roundhouse_operator::metrics::testing::value(registry, series)
}

impl Operator {
    /// The value of one of its series.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        metric(&self.registry, series)
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

    /// Whether it has made all the writes it was allowed.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    /// From now on no write of it arrives, and it gets no answer.
    pub(crate) fn cut_off(&self) {
        self.cut_off_after(0);
    }

    /// So many more writes of it arrive.
    pub(crate) fn cut_off_after(&self, writes: u32) {
        self.left.store(writes, Ordering::SeqCst);
    }

    /// Whether it is the one of several that works.
    pub(crate) fn leads(&self) -> bool {
        self.metric("roundhouse_operator_leader") == Some(1.0)
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ends(mut self) -> Result<(), RunError> {
        (&mut self.task).await.unwrap()
    }

    /// As a kill -9: nothing is finished.
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
        // Whatever the API server does, no reconcile panics, and nothing is written after the time of a Lease.
        if !std::thread::panicking() {
            assert_eq!(panicked, None);
            assert_eq!(self.lease_check.wrong(), [""; 0]);
        }
    }
}
