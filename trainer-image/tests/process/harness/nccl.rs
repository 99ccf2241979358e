//! Jobs over the fake NCCL.

use std::path::Path;

use roundhouse_contract::environment::COLLECTIVE_TIMEOUT_SECONDS;
use serde_json::Value;

use super::{Job, digits, every_steps};

impl Job {
    /// Starts workers of one process, some of which may kill themselves as in [`Job::with_kill`]. A
    /// checkpoint is saved after every twenty steps. After the timeout, NCCL's own watchdog detects
    /// a collective that hangs.
    pub(crate) fn over_nccl(
        config: &Value,
        nodes: u32,
        faults: &[(u32, &str)],
        timeout_seconds: u32,
    ) -> Self {
        let fault = |(node, fault): &(u32, &str)| (*node, "ROUNDHOUSE_FAULT", (*fault).to_owned());
        let variables = faults.iter().map(fault).collect();
        Self::over_nccl_with(config, nodes, variables, timeout_seconds)
    }

    /// Like [`Self::over_nccl`], with environment variables of single workers.
    pub(crate) fn over_nccl_with(
        config: &Value,
        nodes: u32,
        variables: Vec<(u32, &'static str, String)>,
        timeout_seconds: u32,
    ) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.checkpoint = Some(every_steps(job.path("volume"), 20));
        job.variables = variables;
        job.meet_over_nccl(timeout_seconds);
        job.send_in_chunks();
        job.spawn(&digits());
        job
    }

    /// Like [`Self::over_nccl`], with chunks of the default size and only the final save.
    pub(crate) fn with_checkpoints_over_nccl(config: &Value, nodes: u32, volume: &Path) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.checkpoint = Some(every_steps(volume.to_owned(), u64::MAX));
        job.meet_over_nccl(86_400);
        job.spawn(&digits());
        job
    }

    fn meet_over_nccl(&mut self, timeout_seconds: u32) {
        for node in 0..self.nodes {
            self.variables.extend([
                (node, "ROUNDHOUSE_FAULT_BACKEND", "nccl".to_owned()),
                (
                    node,
                    COLLECTIVE_TIMEOUT_SECONDS,
                    timeout_seconds.to_string(),
                ),
            ]);
        }
    }

    /// How often a worker has aborted the group of a generation, by the log of the fake NCCL.
    pub(crate) fn num_aborts(&self, node: u32, generation: u64) -> usize {
        let log = std::fs::read_to_string(self.path(&format!("log-{node}-0")));
        let words = format!("gen{generation} is aborted");
        log.unwrap_or_default().matches(&words).count()
    }
}
