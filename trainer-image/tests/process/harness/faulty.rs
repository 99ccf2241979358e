//! Jobs with injected faults, delays and limits.

use std::path::Path;

use roundhouse_contract::environment::{CheckpointEnvironment, TERMINATION_GRACE_SECONDS};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;

use super::{Job, digits, every_steps, replace};

/// Variables of faults that a replacement process does not get.
const HAPPEN_ONCE: [&str; 4] = [
    "ROUNDHOUSE_FAULT",
    "ROUNDHOUSE_FAULT_FREEZE",
    "ROUNDHOUSE_FAULT_FLIP",
    "ROUNDHOUSE_FAULT_DEVICE",
];

impl Job {
    /// A job with a worker that kills itself at a point: (node, `rank:step:point`). It saves a
    /// checkpoint after every twenty steps.
    pub(crate) fn with_kill(config: &Value, nodes: u32, node: u32, fault: &str) -> Self {
        Self::with_kill_on(config, &digits(), nodes, node, fault)
    }

    /// Like [`Self::with_kill`], with other data.
    pub(crate) fn with_kill_on(
        config: &Value,
        data_dir: &Path,
        nodes: u32,
        node: u32,
        fault: &str,
    ) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.checkpoint = Some(every_steps(job.path("volume"), 20));
        job.variables
            .push((node, "ROUNDHOUSE_FAULT", fault.to_owned()));
        job.begin(data_dir)
    }

    /// A job whose loss is NaN in some steps, such as `20,21`. It saves a checkpoint after every
    /// ten steps. `fault` kills a worker as in [`Self::with_kill`].
    pub(crate) fn spoilt(
        config: &Value,
        nodes: u32,
        procs_per_worker: u32,
        steps: &str,
        fault: Option<(u32, &str)>,
    ) -> Self {
        let mut job = Self::new(config, nodes, procs_per_worker);
        job.checkpoint = Some(every_steps(job.path("volume"), 10));
        steps.clone_into(&mut job.spoilt);
        let fault = fault.map(|(node, fault)| (node, "ROUNDHOUSE_FAULT", fault.to_owned()));
        job.variables.extend(fault);
        job.begin(&digits())
    }

    /// Starts workers of one process that send a state in chunks of one KiB, and waits until they
    /// are in the lobby. Some workers kill themselves as in [`Self::with_kill`].
    pub(crate) fn sharing(
        config: &Value,
        nodes: u32,
        faults: &[(u32, &str)],
        checkpoint: Option<CheckpointEnvironment>,
    ) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.checkpoint = checkpoint;
        let fault = |(node, fault): &(u32, &str)| (*node, "ROUNDHOUSE_FAULT", (*fault).to_owned());
        job.variables.extend(faults.iter().map(fault));
        job.send_in_chunks();
        job.spawn(&digits());
        job.wait_for("the lobby", |status| status.phase.is_ready());
        job
    }

    /// Makes processes send a state in chunks of one KiB.
    pub(super) fn send_in_chunks(&mut self) {
        let chunk = |node| (node, "ROUNDHOUSE_FAULT_CHUNK_BYTES", "1024".to_owned());
        self.variables.extend((0..self.nodes).map(chunk));
    }

    /// A job in which the device of one rank fails at a step.
    pub(crate) fn with_broken_device(config: &Value, nodes: u32, rank: u32, step: u64) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.variables
            .push((rank, "ROUNDHOUSE_FAULT_DEVICE", format!("{rank}:{step}")));
        job.begin(&digits())
    }

    /// A job that saves checkpoints, and in which a weight of one rank changes after a step.
    pub(crate) fn with_flipped_bit(
        config: &Value,
        nodes: u32,
        checkpoint: CheckpointEnvironment,
        rank: u32,
        step: u64,
    ) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.checkpoint = Some(checkpoint);
        job.variables
            .push((rank, "ROUNDHOUSE_FAULT_FLIP", format!("{rank}:{step}")));
        job.spawn(&digits());
        job
    }

    /// A job whose steps take `seconds` longer, with a grace period of four minutes. It saves a
    /// checkpoint when it ends or when all ranks leave.
    pub(crate) fn slow(config: &Value, nodes: u32, seconds: u64) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.checkpoint = Some(every_steps(job.path("volume"), 1_000_000));
        let grace = |node| (node, TERMINATION_GRACE_SECONDS, "240".to_owned());
        job.variables.extend((0..nodes).map(grace));
        job.pace_steps(seconds * 1_000);
        job.begin(&digits())
    }

    /// Limits a process to `bytes` more address space than it has now.
    pub(crate) fn limit_memory(&self, rank: usize, bytes: u64) {
        let process = &self.processes[rank];
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
        let mut lines = status.lines();
        let used = lines.find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let kib: u64 = used.trim().trim_end_matches(" kB").parse().unwrap();
        let most = Some(kib * 1_024 + bytes);
        let limit = Rlimit {
            current: most,
            maximum: most,
        };
        prlimit(Some(Pid::from_child(process)), Resource::As, limit).unwrap();
    }

    /// A job of workers with two processes each. One worker takes `milliseconds` longer for each
    /// step.
    pub(crate) fn slowed(config: &Value, nodes: u32, node: u32, milliseconds: u64) -> Self {
        let mut job = Self::new(config, nodes, 2);
        let pace = job.path("pace");
        std::fs::write(&pace, milliseconds.to_string()).unwrap();
        let pace = pace.to_string_lossy().into_owned();
        job.variables
            .push((node, "ROUNDHOUSE_FAULT_STEP_FILE", pace));
        job.begin(&digits())
    }

    /// Starts the processes of a job that saves when all ranks leave, with this grace period.
    pub(crate) fn leaving(config: &Value, nodes: u32, volume: &Path, grace_seconds: u64) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.checkpoint = Some(every_steps(volume.to_owned(), u64::MAX));
        let grace = |node| {
            let seconds = grace_seconds.to_string();
            (node, TERMINATION_GRACE_SECONDS, seconds)
        };
        job.variables.extend((0..nodes).map(grace));
        job.spawn(&digits());
        job
    }

    /// Starts the processes of a job that keeps checkpoints.
    pub(crate) fn with_checkpoints(
        config: &Value,
        nodes: u32,
        checkpoint: CheckpointEnvironment,
    ) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.checkpoint = Some(checkpoint);
        job.spawn(&digits());
        job
    }

    /// Like [`Self::with_checkpoints`], but a file of a checkpoint has a stale handle until
    /// [`Self::end_stale`].
    pub(crate) fn with_stale_handle(
        config: &Value,
        nodes: u32,
        checkpoint: CheckpointEnvironment,
        file: &Path,
    ) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.checkpoint = Some(checkpoint);
        std::fs::write(job.path("stale"), file.to_str().unwrap()).unwrap();
        let stale = job.path("stale").to_string_lossy().into_owned();
        let variable = |node| (node, "ROUNDHOUSE_FAULT_STALE_FILE", stale.clone());
        job.variables.extend((0..nodes).map(variable));
        job.spawn(&digits());
        job
    }

    pub(crate) fn end_stale(&self) {
        std::fs::remove_file(self.path("stale")).unwrap();
    }

    /// Starts a job with this I/O timeout of the volume, whose access is paced from the start.
    pub(crate) fn patient(
        config: &Value,
        nodes: u32,
        checkpoint: CheckpointEnvironment,
        seconds: u64,
        pace: &str,
    ) -> Self {
        let mut job = Self::new(config, nodes, 1);
        job.checkpoint = Some(checkpoint);
        job.patience = Some(seconds);
        job.pace_volume(pace);
        job.spawn(&digits());
        job
    }

    /// Sets by how many milliseconds each access to the volume is slowed down, or makes all of them
    /// wait (`hold`).
    pub(crate) fn pace_volume(&self, pace: &str) {
        replace(&self.path("pace-of-volume"), pace);
    }

    /// Sets by how much each step is slowed down.
    pub(crate) fn pace_steps(&self, milliseconds: u64) {
        replace(&self.path("pace-of-steps"), &milliseconds.to_string());
    }

    /// Sets by how much each local copy is slowed down.
    pub(crate) fn pace_copies(&self, milliseconds: u64) {
        replace(&self.path("pace-of-copies"), &milliseconds.to_string());
    }

    /// Starts a replacement for an ended worker of one process.
    pub(crate) fn respawn(&mut self, node: u32) {
        self.variables
            .retain(|(_, name, _)| !HAPPEN_ONCE.contains(name));
        let _ = std::fs::remove_dir_all(self.run_dir(node));
        std::fs::create_dir(self.run_dir(node)).unwrap();
        let process = self.command(node, 0, &digits()).spawn().unwrap();
        let mut old = std::mem::replace(&mut self.processes[node as usize], process);
        old.wait().unwrap();
        self.wait_until("the new process in the lobby", || {
            self.status(node, 0)
                .is_some_and(|status| status.phase.is_ready())
        });
    }
}
