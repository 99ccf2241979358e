//! The metrics of the agent itself.

use prometheus::{IntCounter, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

use crate::options::Options;
use crate::{exposition, ranks};

/// The metrics of the agent itself, in their own registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    process_up: IntGaugeVec,
    process_restarts: IntCounter,
    generation: IntGauge,
}

impl Metrics {
    /// Registers the metrics of this worker.
    ///
    /// # Errors
    /// Returns an error if a name is in use or not allowed.
    pub fn new(procs: u32) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let info = IntGaugeVec::new(
            Opts::new("roundhouse_agent_info", "Version of the agent, as a label."),
            &["version"],
        )?;
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let processes = IntGauge::new("roundhouse_agent_processes", "Processes of this worker.")?;
        processes.set(procs.into());
        let process_up = IntGaugeVec::new(
            Opts::new(
                "roundhouse_agent_process_up",
                "1 while the process runs, 0 otherwise.",
            ),
            &["local_rank"],
        )?;
        let process_restarts = IntCounter::new(
            "roundhouse_agent_process_restarts_total",
            "Processes that died and that the agent started again in this container.",
        )?;
        let generation = IntGauge::new(
            "roundhouse_agent_generation",
            "Generation that the worker trains in, 0 in the lobby.",
        )?;
        registry.register(Box::new(info))?;
        registry.register(Box::new(processes))?;
        registry.register(Box::new(process_up.clone()))?;
        registry.register(Box::new(process_restarts.clone()))?;
        registry.register(Box::new(generation.clone()))?;
        for local_rank in 0..procs {
            process_up.with_label_values(&[&local_rank.to_string()]);
        }
        Ok(Self {
            registry,
            process_up,
            process_restarts,
            generation,
        })
    }

    /// Records that a process started or ended.
    pub fn set_up(&self, local_rank: u32, up: bool) {
        self.process_up
            .with_label_values(&[&local_rank.to_string()])
            .set(up.into());
    }

    /// Records that a process is restarted.
    pub fn count_restart(&self) {
        self.process_restarts.inc();
    }

    /// Returns the agent's metrics and those of all ranks, as Prometheus text.
    ///
    /// # Errors
    /// Returns an error if a metric cannot be encoded.
    pub fn render(&self, options: &Options) -> Result<String, prometheus::Error> {
        let statuses: Vec<_> = (0..options.procs)
            .map(|local| ranks::status(&options.run_dir, local))
            .collect();
        let newest = statuses
            .iter()
            .flatten()
            .map(|status| status.generation)
            .max();
        self.generation.set(
            newest
                .and_then(|value| i64::try_from(value).ok())
                .unwrap_or(0),
        );
        let texts: Vec<(u32, String)> = (0..options.procs)
            .zip(&statuses)
            .filter_map(|(local, status)| {
                let rank = status
                    .as_ref()
                    .and_then(|status| status.rank)
                    .unwrap_or(local);
                Some((rank, ranks::metrics(&options.run_dir, local)?))
            })
            .collect();
        let theirs = exposition::merge(texts.iter().map(|(rank, text)| (*rank, text.as_str())));
        Ok(self.own_text()? + &theirs)
    }

    /// Returns only the agent's own metrics, as Prometheus text.
    ///
    /// # Errors
    /// Returns an error if a metric cannot be encoded.
    pub fn own_text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}
