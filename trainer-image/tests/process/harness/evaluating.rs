//! Jobs with slow evaluations.

use std::path::PathBuf;

use serde_json::Value;

use super::{Job, digits, every_steps, replace};

impl Job {
    /// Starts workers of one process, and waits until they are in the lobby. Each batch of an
    /// evaluation takes `milliseconds` longer. A checkpoint is saved after every `every` steps.
    pub(crate) fn evaluating(config: &Value, nodes: u32, milliseconds: u64, every: u64) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.checkpoint = Some(every_steps(job.path("volume"), every));
        for node in 0..nodes {
            let file = job.pace_file().to_string_lossy().into_owned();
            job.variables
                .push((node, "ROUNDHOUSE_FAULT_EVALUATION_FILE", file));
        }
        job.pace_evaluations(milliseconds);
        job.spawn(&digits());
        job.wait_for("the lobby", |status| status.phase.is_ready());
        job
    }

    /// Sets by how much each batch of an evaluation is slowed down.
    pub(crate) fn pace_evaluations(&self, milliseconds: u64) {
        replace(&self.pace_file(), &milliseconds.to_string());
    }

    /// The first step that a generation has committed, by its ledger.
    pub(crate) fn first_step_of(&self, generation: u64) -> u64 {
        let directory = self.volume().join("ledger");
        let path = directory.join(roundhouse_elastic::ledger::file_name(generation));
        // Below the header. Lines of the previous generation come first if they may not be on the
        // disk.
        let first_step = || {
            let text = std::fs::read_to_string(&path).ok()?;
            let lines = text.lines().skip(1).map(serde_json::from_str::<Value>);
            let mut own = lines
                .flatten()
                .filter(|line| line["generation"] == generation);
            own.next()?["step"].as_u64()
        };
        self.wait_until("line of the generation", || first_step().is_some());
        first_step().unwrap_or_default()
    }

    fn pace_file(&self) -> PathBuf {
        self.path("pace-of-evaluations")
    }
}
