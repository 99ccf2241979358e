//! Reads the reports of a job's processes, and waits for them.

use std::time::{Duration, Instant};

use roundhouse_contract::{Progress, RankStatus, TerminationMessage, TraceRequest, paths};

use super::{DEADLINE, Job};

impl Job {
    /// Waits until the status of every process satisfies a condition.
    pub(crate) fn wait_for(&self, what: &str, condition: impl Fn(&RankStatus) -> bool) {
        self.wait_until(what, || {
            self.ranks()
                .all(|(node, local)| self.status(node, local).is_some_and(|s| condition(&s)))
        });
    }

    /// Waits until the status of some processes satisfies a condition.
    pub(crate) fn wait_for_nodes(
        &self,
        nodes: &[u32],
        what: &str,
        condition: impl Fn(&RankStatus) -> bool,
    ) {
        self.wait_until(what, || {
            nodes.iter().all(|node| {
                self.status(*node, 0)
                    .is_some_and(|status| condition(&status))
            })
        });
    }

    pub(crate) fn wait_until(&self, what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !condition() {
            assert!(Instant::now() < deadline, "no {what}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The last status of a process.
    pub(crate) fn status(&self, node: u32, local_rank: u32) -> Option<RankStatus> {
        let text = std::fs::read_to_string(paths::rank_status(&self.run_dir(node), local_rank));
        text.ok().map(|text| serde_json::from_str(&text).unwrap())
    }

    /// The last progress that rank 0 has reported.
    pub(crate) fn progress(&self) -> Progress {
        self.status(0, 0)
            .and_then(|status| status.progress)
            .unwrap()
    }

    /// The accuracy of the last evaluation.
    pub(crate) fn accuracy(&self) -> f64 {
        self.progress().eval_accuracy.unwrap()
    }

    /// The termination message of a process, if it has written one.
    pub(crate) fn last_words(&self, node: u32) -> Option<TerminationMessage> {
        let text = std::fs::read_to_string(paths::rank_failure(&self.run_dir(node), 0)).ok()?;
        TerminationMessage::parse(&text)
    }

    /// The termination message of a failed process.
    pub(crate) fn failure(&self, node: u32, local_rank: u32) -> TerminationMessage {
        let path = paths::rank_failure(&self.run_dir(node), local_rank);
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", path.display(), self.logs()));
        TerminationMessage::parse(&text).unwrap()
    }

    /// A metric of a process.
    pub(crate) fn metric(&self, node: u32, name: &str) -> f64 {
        let text = self.metrics(node, 0);
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or(0.0)
    }

    /// The largest number of committed steps of all processes.
    pub(crate) fn step(&self) -> u64 {
        let statuses = self
            .ranks()
            .filter_map(|(node, local)| self.status(node, local));
        statuses.map(|status| status.step).max().unwrap_or(0)
    }

    /// The trouble with the volume that rank 0 reports.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.status(0, 0)?.progress?.checkpoint_error
    }

    /// Waits until rank 0 reports trouble with the volume that contains these words.
    pub(crate) fn wait_for_trouble(&self, words: &str) -> String {
        let has_words = || {
            self.trouble()
                .is_some_and(|trouble| trouble.contains(words))
        };
        self.wait_until(words, has_words);
        self.trouble().unwrap_or_default()
    }

    /// Waits until all ranks have committed this number of further steps.
    pub(crate) fn wait_for_steps(&self, steps: u64) {
        let before = self.status(0, 0).map_or(0, |status| status.step);
        self.wait_for("more steps", |status| status.step >= before + steps);
    }

    /// The metrics of a process.
    pub(crate) fn metrics(&self, node: u32, local_rank: u32) -> String {
        std::fs::read_to_string(paths::rank_metrics(&self.run_dir(node), local_rank)).unwrap()
    }

    /// The output of all processes.
    pub(crate) fn logs(&self) -> String {
        self.ranks()
            .map(|(node, local)| {
                let name = format!("log-{node}-{local}");
                let text = std::fs::read_to_string(self.path(&name)).unwrap_or_default();
                format!("--- {name}\n{text}")
            })
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Requests a trace of this number of steps from rank 0, as the agent does, and waits for it.
    pub(crate) fn trace(&self, num_steps: u32) -> String {
        let result = self.path("trace.json");
        let request = TraceRequest {
            num_steps,
            result: result.clone(),
        };
        super::replace(
            &paths::rank_trace_request(&self.run_dir(0), 0),
            &serde_json::to_string(&request).unwrap(),
        );
        self.wait_until("trace", || result.exists());
        std::fs::read_to_string(result).unwrap()
    }
}
