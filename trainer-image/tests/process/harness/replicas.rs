//! Replicas of several workers, as pods of one replica are in a cluster. Each worker has a loopback
//! address of its own.

use std::path::Path;

use roundhouse_contract::environment::{
    CheckpointEnvironment, LAST_SEEN_GENERATION, REPLICA_FILE, ReplicaPods,
};
use roundhouse_contract::paths;
use roundhouse_member::faults::Cut;
use serde_json::Value;

use super::{Job, every_steps};

impl Job {
    /// Starts replicas of `size` workers with one process each, and publishes the first generation
    /// when all are in the lobby.
    pub(crate) fn of_replicas(config: &Value, replicas: u32, size: u32, volume: &Path) -> Self {
        let checkpoint = every_steps(volume.to_owned(), 20);
        Self::new_replicas(config, replicas, size, checkpoint).begin(&super::digits())
    }

    /// Starts replicas of `size` workers that keep copies. Each worker holds second copies of the
    /// state of the one before if the job `has_peer_copies`.
    pub(crate) fn replicas_with_copies(
        config: &Value,
        (replicas, size): (u32, u32),
        checkpoint: CheckpointEnvironment,
        has_peer_copies: bool,
    ) -> Self {
        let mut job = Self::new_replicas(config, replicas, size, checkpoint);
        job.has_peer_copies = has_peer_copies;
        job.begin(&super::digits())
    }

    /// Makes a rank kill itself the next time it comes to a point, and waits for its end.
    pub(crate) fn kill_at(&mut self, rank: u32, point: &str) {
        super::replace(&self.path("fault"), &format!("{rank}:{point}"));
        assert_eq!(self.exit_code(rank as usize), None, "{}", self.logs());
    }

    /// Makes a rank lose its connections to the other processes of its replica.
    pub(crate) fn cut_links(&self, rank: u32, cut: Cut) {
        super::replace(&self.path("fault"), &format!("{rank}:{}", cut.name()));
    }

    /// Does what the agent of a pod does when its replica is lost.
    pub(crate) fn report_end_of_life(&self, node: u32) {
        let file = self.run_dir(node).join(self.life_of(node)).join("store");
        std::fs::write(paths::end_of_life(&file), "").unwrap();
    }

    fn new_replicas(
        config: &Value,
        replicas: u32,
        size: u32,
        checkpoint: CheckpointEnvironment,
    ) -> Self {
        let mut job = Self::new(config, replicas * size, 1);
        job.replica_size = size;
        job.lives = vec![1; replicas as usize];
        job.checkpoint = Some(checkpoint);
        job
    }

    /// The workers of a replica.
    pub(crate) fn workers_of(&self, replica: u32) -> Vec<u32> {
        let first = replica * self.replica_size;
        (first..first + self.replica_size).collect()
    }

    /// Ends what is left of a replica, and starts all of its processes again. They take no part in
    /// the generation `former`.
    pub(crate) fn begin_life(&mut self, replica: u32, former: u64) {
        self.lives[replica as usize] += 1;
        for node in self.workers_of(replica) {
            let _ = self.processes[node as usize].kill();
            let _ = self.processes[node as usize].wait();
            let _ = std::fs::remove_file(self.run_dir(node).join("rank-0.json"));
        }
        for node in self.workers_of(replica) {
            let mut command = self.command(node, 0, &super::digits());
            command.env(LAST_SEEN_GENERATION, former.to_string());
            self.processes[node as usize] = command.spawn().unwrap();
        }
    }

    /// What a process needs to find the others of its replica.
    pub(super) fn replica_environment(&self, node: u32) -> Vec<(&'static str, String)> {
        if self.replica_size == 1 {
            return Vec::new();
        }
        let replica = node / self.replica_size;
        let pods = ReplicaPods {
            life: self.life_of(node),
            pod: node % self.replica_size,
            addresses: self
                .workers_of(replica)
                .into_iter()
                .map(|it| self.address_of(it))
                .collect(),
            holders: (0..self.replica_size)
                .filter(|_| self.has_peer_copies)
                .map(|pod| Some((pod + 1) % self.replica_size))
                .collect(),
        };
        let directory = self.run_dir(node).join(&pods.life);
        std::fs::create_dir_all(&directory).unwrap();
        let mut pairs = pods.to_pairs();
        pairs.push((REPLICA_FILE, directory.join("store").display().to_string()));
        pairs
    }

    /// The life of a worker's replica; empty if that is one worker.
    pub(super) fn life_of(&self, node: u32) -> String {
        let replica = node / self.replica_size;
        let life = self.lives.get(replica as usize);
        life.map_or_else(String::new, |life| format!("life-{replica}-{life}"))
    }

    /// The port of a worker's store is its own on this machine, so this address is, too.
    pub(super) fn address_of(&self, node: u32) -> String {
        let [high, low] = self.ports[node as usize].to_be_bytes();
        format!("127.77.{high}.{low}")
    }
}
