//! Workers of one pod whose second copies are in a spare.

use std::path::PathBuf;

use roundhouse_contract::environment::{
    CheckpointEnvironment, LocalCopiesEnvironment, REPLICA_FILE,
};
use roundhouse_contract::{CopyPair, CopyRole};
use serde_json::Value;

use super::{Job, every_steps, replace};

impl Job {
    /// Starts workers that keep a copy every `every` steps, and waits until they are in the lobby.
    /// The processes of a worker hold one copy of the state together. No checkpoint is due before
    /// the end.
    pub(crate) fn with_holders(
        config: &Value,
        nodes: u32,
        procs_per_worker: u32,
        (volume, copies): (PathBuf, PathBuf),
        every: u64,
    ) -> Self {
        let mut job = Self::new(config, nodes, procs_per_worker);
        let pair_files = job.path("pairs");
        std::fs::create_dir(&pair_files).unwrap();
        job.checkpoint = Some(CheckpointEnvironment {
            local: Some(LocalCopiesEnvironment {
                dir: copies,
                every_steps: every,
                max_bytes: None,
                pair_file: Some(pair_files),
            }),
            ..every_steps(volume, 1_000_000)
        });
        if procs_per_worker > 1 {
            for node in 0..nodes {
                job.name_replica(node, "first");
            }
        }
        job.spawn(&super::digits());
        job.wait_for("the lobby", |status| status.phase.is_ready());
        job
    }

    /// Pairs a worker with its holder, as the operator does.
    pub(crate) fn pair(&self, id: &str, worker: u32, holder: u32) {
        for (node, role, peer) in [
            (holder, CopyRole::Holder, worker),
            (worker, CopyRole::Worker, holder),
        ] {
            let pair = CopyPair {
                id: id.to_owned(),
                role,
                peer: format!("worker-{peer}"),
                address: self.address_of(peer),
                generation: 0,
            };
            let file = self.path("pairs").join(node.to_string());
            replace(&file, &pair.to_json().unwrap());
        }
    }

    /// Kills all processes of a worker, and waits for their ends.
    pub(crate) fn kill_worker(&mut self, node: u32) {
        for process in self.processes_of(node) {
            let _ = self.processes[process].kill();
            let _ = self.processes[process].wait();
        }
    }

    /// Starts all processes of a worker again, as a new pod.
    pub(crate) fn begin_pod(&mut self, node: u32, life: &str) {
        let _ = std::fs::remove_file(self.path("pairs").join(node.to_string()));
        let _ = std::fs::remove_file(self.membership_file(node));
        self.name_replica(node, life);
        self.begin_container(node);
    }

    /// Starts all processes of a worker again, in the same pod.
    pub(crate) fn begin_container(&mut self, node: u32) {
        self.kill_worker(node);
        for process in self.processes_of(node) {
            let local_rank = u32::try_from(process).unwrap() % self.procs_per_worker;
            let status = self.run_dir(node).join(format!("rank-{local_rank}.json"));
            let _ = std::fs::remove_file(status);
            let mut command = self.command(node, local_rank, &super::digits());
            self.processes[process] = command.spawn().unwrap();
        }
        self.wait_for_nodes(&[node], "the lobby", |status| status.phase.is_ready());
    }

    /// Makes a worker lose its peers at the end of forming a generation, once it has started again.
    pub(crate) fn fail_to_form(&mut self, node: u32, generation: u64) {
        let fault = format!("0:{generation}:Formed");
        self.variables.push((node, "ROUNDHOUSE_FAULT_LOSE", fault));
    }

    /// Makes rank 0, a process of this worker, kill itself when it comes to a point. Then kills the
    /// rest of the worker.
    pub(crate) fn dies_at(&mut self, node: u32, point: &str) {
        replace(&self.path("fault"), &format!("0:{point}"));
        let first = self.processes_of(node).start;
        assert_eq!(self.exit_code(first), None, "{}", self.logs());
        self.kill_worker(node);
    }

    /// The address of a worker: its own if other workers send it copies.
    pub(super) fn ip_of(&self, node: u32) -> String {
        let local = self.checkpoint.as_ref().and_then(|it| it.local.as_ref());
        match local.and_then(|local| local.pair_file.as_ref()) {
            Some(_) => self.address_of(node),
            None => "127.0.0.1".to_owned(),
        }
    }

    fn processes_of(&self, node: u32) -> std::ops::Range<usize> {
        let num = self.procs_per_worker as usize;
        let first = node as usize * num;
        first..first + num
    }

    /// Gives the processes of a worker a file through which they find each other.
    fn name_replica(&mut self, node: u32, life: &str) {
        self.variables
            .retain(|(of, name, _)| (*of, *name) != (node, REPLICA_FILE));
        if self.procs_per_worker > 1 {
            let directory = self.path(&format!("replica-{node}-{life}"));
            std::fs::create_dir(&directory).unwrap();
            let file = directory.join("store").display().to_string();
            self.variables.push((node, REPLICA_FILE, file));
        }
    }
}
