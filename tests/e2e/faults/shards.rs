//! Workers of two processes that hold one copy of the state together. If one process dies, its
//! agent restarts both, and the other workers continue.

use kube::ResourceExt;
use roundhouse_tests::cluster::{DEADLINE, until};
use roundhouse_tests::{nodes, processes};
use rustix::process::Signal;
use serde_json::json;

use super::drill::Drill;
use super::fault::Fault;

/// Number of processes of a worker that share a state.
const NUM_SHARDS: usize = 2;
/// Steps of 50 ms: enough for two faults.
const NUM_STEPS: u64 = 1_500;

impl Drill {
    /// Kills a process of one of three workers and deletes the pod of another. The job completes,
    /// the third worker restarts nothing, and no step is lost.
    pub(super) async fn loses_a_process_and_a_pod(&self) {
        let first = self.trains(3, 0).await;
        let members = self.members(first).await;
        let names: Vec<String> = members.iter().map(ResourceExt::name_any).collect();
        let [killed, deleted, untouched] = &<[String; 3]>::try_from(names).unwrap();
        let of_deleted = self.processes_of(deleted);
        let of_untouched = self.processes_of(untouched);

        self.kill_one_of(killed).await;
        let second = self.trains(3, first).await;
        assert_eq!(self.processes_of(deleted), of_deleted);
        assert_eq!(self.processes_of(untouched), of_untouched);

        Fault::Delete.inject(self, deleted).await;
        self.trains(3, second).await;
        assert_eq!(self.processes_of(untouched), of_untouched);

        // The agent restarts a replica without its container.
        self.ends_well(1, &[killed.clone(), untouched.clone()])
            .await;
        let audit = self.audit();
        assert!(!audit.contains("lost"), "{audit}");
    }

    /// The process ids of a worker's training processes.
    fn processes_of(&self, pod: &str) -> Vec<u32> {
        nodes::processes(&self.space.name, pod).unwrap()
    }

    /// Kills one of the processes of a worker that share a state, and waits until the agent has
    /// started all of them again.
    async fn kill_one_of(&self, pod: &str) {
        let before = self.processes_of(pod);
        assert_eq!(before.len(), NUM_SHARDS, "{before:?}");
        assert!(processes::send(before[1], Signal::KILL));
        let restarted = until("the replica restarts", DEADLINE, || async {
            let now = nodes::processes(&self.space.name, pod)?;
            let is_new = now.iter().all(|pid| !before.contains(pid));
            Ok((now.len() == NUM_SHARDS && is_new).then_some(()))
        });
        self.or_dump(restarted.await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn divided_weights_survive_a_killed_process_and_a_deleted_pod() {
    let mut job = Drill::digits(NUM_STEPS, false);
    job["spec"]["workers"]["procsPerWorker"] = json!(NUM_SHARDS);
    job["spec"]["trainer"]["parallel"] = json!({"shard": "Zero3"});
    job["spec"]["trainer"]["optimizer"] = json!({"name": "adamw", "learningRate": 0.001});
    let drill = Drill::start_job("e2e-zero3", job).await;
    drill.loses_a_process_and_a_pod().await;
    drill.compare_with_undisturbed_run();
    drill.delete().await;
}
