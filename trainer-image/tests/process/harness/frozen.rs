//! Processes that are stopped, as by a debugger or a hypervisor, and continue later.

use serde_json::Value;

use super::{Job, digits, every_steps};

impl Job {
    /// Starts workers of one process. One worker stops itself at a point (`rank:step:point`). A
    /// checkpoint is saved after every twenty steps.
    pub(crate) fn freezing(config: &Value, nodes: u32, node: u32, point: &str) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.checkpoint = Some(every_steps(job.path("volume"), 20));
        job.variables
            .push((node, "ROUNDHOUSE_FAULT_FREEZE", point.to_owned()));
        job.spawn(&digits());
        job
    }

    /// Waits until a process has been stopped.
    pub(crate) fn wait_until_stopped(&self, rank: usize) {
        let file = format!("/proc/{}/stat", self.processes[rank].id());
        // The name, in parentheses, contains no parenthesis.
        let state = || std::fs::read_to_string(&file).unwrap_or_default();
        self.wait_until("stopped process", || state().contains(") T "));
    }
}
