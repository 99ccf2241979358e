//! Replicas of two pods, whose processes hold one copy of the state together. Whatever happens to
//! a pod, its replica leaves and returns, the other one trains on, and no step is lost.

use std::time::Instant;

use kube::ResourceExt;
use roundhouse_contract::labels;
use roundhouse_contract::{Action, Membership, ReplicaPlace};
use roundhouse_tests::cluster::{DEADLINE, until};
use roundhouse_tests::{nodes, processes};
use rustix::process::Signal;
use serde_json::json;

use super::drill::Drill;
use super::fault::Fault;

/// Pods of a replica.
const SIZE: usize = 2;
/// Steps of 50 ms: enough for all faults of a test.
const NUM_STEPS: u64 = 2_500;

/// A job of two replicas of two pods. With `spread`, its pods are on all nodes.
pub(super) async fn drill(name: &str, spread: bool) -> Drill {
    let mut job = Drill::digits(NUM_STEPS, spread);
    let workers = &mut job["spec"]["workers"];
    workers["replicas"] = json!(2);
    workers["minReplicas"] = json!(1);
    workers["podsPerReplica"] = json!(SIZE);
    job["spec"]["trainer"]["parallel"] = json!({"shard": "Zero3"});
    job["spec"]["trainer"]["optimizer"] = json!({"name": "adamw", "learningRate": 0.001});
    Drill::start_job(name, job).await
}

impl Drill {
    /// The names of the pods of a generation by their replicas.
    pub(super) async fn replicas(&self, generation: u64) -> [[String; SIZE]; 2] {
        let members = self.members(generation).await;
        let names: Vec<String> = members.iter().map(ResourceExt::name_any).collect();
        let [first, second, third, fourth] = <[String; 4]>::try_from(names).unwrap();
        [[first, second], [third, fourth]]
    }

    /// The process of a pod.
    pub(super) fn process_of(&self, pod: &str) -> u32 {
        nodes::process(&self.space.name, pod).unwrap()
    }

    /// Kills the process of a pod in a generation, and waits until the replica has both processes
    /// again. Prints how long the other replica took until its next step.
    async fn kill_process(&self, generation: u64, pod: &str, sibling: &str) {
        let before = [pod, sibling].map(|pod| self.process_of(pod));
        let begun = Instant::now();
        assert!(processes::send(before[0], Signal::KILL));
        let trains = until("the other replica trains", DEADLINE, || async {
            Ok((self.num_committed(generation + 1) > 0).then_some(()))
        });
        self.or_dump(trains.await).await;
        println!("{pod}: next step after {:.2?}", begun.elapsed());
        let restarted = until("the replica restarts", DEADLINE, || async {
            let mut now = Vec::new();
            for pod in [pod, sibling] {
                now.extend(nodes::processes(&self.space.name, pod)?);
            }
            let is_new = now.iter().all(|pid| !before.contains(pid));
            Ok((now.len() == SIZE && is_new).then_some(()))
        });
        self.or_dump(restarted.await).await;
    }

    /// Checks that the documents of pods name whole replicas of one life each.
    pub(super) async fn has_whole_replicas(&self) {
        let pods = self.pods().await.unwrap();
        let documents = pods.iter().filter_map(|pod| {
            let text = pod.annotations().get(labels::MEMBERSHIP)?;
            let document: Membership = serde_json::from_str(text).ok()?;
            let place = ReplicaPlace::parse(pod.annotations().get(labels::REPLICA)?)?;
            (document.action == Action::Join).then_some((document, place))
        });
        let documents: Vec<_> = documents.collect();
        let newest = documents.iter().map(|(it, _)| it.generation).max().unwrap();
        for (document, place) in documents.iter().filter(|(it, _)| it.generation == newest) {
            assert_eq!(document.life, place.life);
            let siblings = documents
                .iter()
                .filter(|(other, _)| other.generation == newest && other.life == document.life);
            assert_eq!(siblings.count(), SIZE, "{document:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_of_two_pods_survives_kills_a_deletion_and_a_drain() {
    let drill = drill("e2e-large", false).await;
    let first = drill.trains(2, 0).await;
    let [broken, untouched] = drill.replicas(first).await;
    let before = untouched.clone().map(|pod| drill.process_of(&pod));

    // The second pod of a replica, then the first one, which hosts its store.
    drill.kill_process(first, &broken[1], &broken[0]).await;
    let second = drill.trains(2, first).await;
    let begun = Instant::now();
    drill.kill_process(second, &broken[0], &broken[1]).await;
    let third = drill.trains(2, second).await;
    println!(
        "five steps with both replicas after {:.2?}",
        begun.elapsed()
    );
    drill.has_whole_replicas().await;

    Fault::Delete.inject(&drill, &broken[1]).await;
    let fourth = drill.trains(2, third).await;
    Fault::Drain.inject(&drill, &broken[0]).await;
    drill.trains(2, fourth).await;
    drill.has_whole_replicas().await;

    let after = untouched.clone().map(|pod| drill.process_of(&pod));
    assert_eq!(before, after, "the other replica does not restart");
    drill.ends_well(2, &untouched).await;
    let audit = drill.audit();
    assert!(!audit.contains("lost"), "{audit}");
    drill.compare_with_undisturbed_run();
    drill.delete().await;
}
