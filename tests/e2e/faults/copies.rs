//! All replicas of a job lose a process or a pod. The volumes of the pods that stay have the local
//! copies of the state.

use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use roundhouse_contract::{CopyPair, CopyRole, labels};
use roundhouse_tests::cluster::{DEADLINE, until};
use roundhouse_tests::processes;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::drill::Drill;
use super::fault::Fault;

/// Steps of 50 ms: enough for the faults.
const STEPS: u64 = 300;
/// Number of steps between two copies.
const EVERY: u64 = 5;
/// Steps before a fault: many copies, and no checkpoint or an older one.
const STEPS_BEFORE: usize = 35;

fn lone(spread: bool) -> Value {
    let mut job = Drill::digits(STEPS, spread);
    job["spec"]["workers"]["replicas"] = json!(1);
    job["spec"]["checkpoint"]["local"] = json!({"everySteps": EVERY, "sizeLimit": "64Mi"});
    job
}

impl Drill {
    async fn has_copies(&self, generation: u64) {
        let committed = until("steps and copies", DEADLINE, || async {
            Ok((self.num_committed(generation) >= STEPS_BEFORE).then_some(()))
        });
        self.or_dump(committed.await).await;
    }

    /// Waits until a spare is known to have a copy of the state of this generation. Returns it.
    async fn holder(&self, generation: u64) -> Pod {
        let has_copy = |pod: &Pod| {
            let text = pod.annotations().get(labels::COPY_PAIR);
            let pair = text.and_then(|text| CopyPair::parse(text));
            pair.is_some_and(|it| it.role == CopyRole::Holder && it.generation == generation)
        };
        let holder = until("a copy in a spare", DEADLINE, || async {
            Ok(self.pods().await?.into_iter().find(has_copy))
        });
        self.or_dump(holder.await).await
    }

    /// Checks the number of repeated steps, the audit and the weights.
    async fn repeats_few_steps(&self, faults: u64) {
        let progress = self.status().await.unwrap().progress.unwrap().progress;
        let repeated = progress.repeated_steps;
        println!("{repeated} steps were repeated after {faults} faults");
        assert!(
            repeated <= 2 * EVERY * faults,
            "{repeated}: {}",
            self.audit()
        );
        self.compare_with_undisturbed_run();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lone_worker_continues_from_the_copy_in_its_pod() {
    let drill = Drill::start_job("e2e-copies", lone(false)).await;
    let first = drill.trains(1, 0).await;
    let members = drill.members(first).await;
    let (worker, _) = Fault::KillRankZero.victim(&members);
    drill.has_copies(first).await;
    Fault::KillRankZero.inject(&drill, &worker).await;
    drill.trains(1, first).await;
    drill.ends_well(1, &[]).await;
    drill.repeats_few_steps(1).await;
    drill.delete().await;
}

/// Worker and spare are on different nodes. The worker is lost with its volume, and the spare has
/// copies of its state. Then the same happens to the spare.
#[tokio::test(flavor = "multi_thread")]
async fn lone_worker_continues_from_the_copies_of_its_spare() {
    let mut job = lone(true);
    let spec = &mut job["spec"];
    spec["workers"]["spares"] = json!(1);
    spec["checkpoint"]["local"]["peerCopies"] = json!(1);
    let drill = Drill::start_job("e2e-held-copies", job).await;
    let mut generation = drill.trains(1, 0).await;
    for _ in 0..2 {
        drill.has_copies(generation).await;
        let worker = drill.members(generation).await.remove(0);
        let holder = drill.holder(generation).await;
        assert_ne!(
            worker.spec.unwrap().node_name,
            holder.spec.unwrap().node_name
        );
        let pod = worker.metadata.name.unwrap();
        let begun = Instant::now();
        Fault::DeleteByForce.inject(&drill, &pod).await;
        generation = drill.trains(1, generation).await;
        println!("{pod} is lost: five steps after {:.2?}", begun.elapsed());
        let now = drill.members(generation).await.remove(0);
        assert_eq!(now.metadata.name, holder.metadata.name);
    }
    drill.ends_well(Fault::DeleteByForce.incidents(), &[]).await;
    drill.repeats_few_steps(2).await;
    drill.delete().await;
}

/// Each pod is on another node. One after the other is lost with its volume, and a spare that never
/// trained takes its place.
#[tokio::test(flavor = "multi_thread")]
async fn lone_replica_continues_from_the_copies_of_its_other_pod() {
    let mut job = lone(true);
    let spec = &mut job["spec"];
    spec["workers"]["podsPerReplica"] = json!(2);
    spec["workers"]["spares"] = json!(1);
    spec["trainer"]["parallel"] = json!({"shard": "Zero3"});
    spec["checkpoint"]["local"]["peerCopies"] = json!(1);
    let drill = Drill::start_job("e2e-peer-copies", job).await;
    let mut generation = drill.trains(1, 0).await;
    for lost in 0..2 {
        drill.has_copies(generation).await;
        let pod = drill.members(generation).await[lost].name_any();
        let begun = Instant::now();
        Fault::DeleteByForce.inject(&drill, &pod).await;
        generation = drill.trains(1, generation).await;
        println!("{pod} is lost: five steps after {:.2?}", begun.elapsed());
    }
    drill.ends_well(Fault::DeleteByForce.incidents(), &[]).await;
    drill.repeats_few_steps(2).await;
    drill.delete().await;
}

/// Two replicas lose different pods at the same moment, and no copy was due. The processes that are
/// left keep their parts of the last state, and together they have all of it.
#[tokio::test(flavor = "multi_thread")]
async fn pods_that_are_left_of_two_replicas_continue_together() {
    let mut job = lone(true);
    let spec = &mut job["spec"];
    spec["workers"]["replicas"] = json!(2);
    spec["workers"]["minReplicas"] = json!(1);
    spec["workers"]["podsPerReplica"] = json!(2);
    spec["trainer"]["parallel"] = json!({"shard": "Zero3"});
    spec["checkpoint"]["local"]["everySteps"] = json!(1_000_000);
    let drill = Drill::start_job("e2e-two-torn", job).await;
    let first = drill.trains(2, 0).await;
    drill.has_copies(first).await;
    let [[_, second_of_one], [first_of_other, _]] = drill.replicas(first).await;
    // A process that is stopped between two steps holds up all others at the same step.
    drill.pace(1_000);
    let before = drill.num_committed(first);
    let slow = until("slow steps", DEADLINE, || async {
        Ok((drill.num_committed(first) > before + 1).then_some(()))
    });
    drill.or_dump(slow.await).await;
    for pod in [&second_of_one, &first_of_other] {
        assert!(processes::send(drill.process_of(pod), Signal::STOP));
    }
    drill.pace(50);
    let fault = Fault::DeleteByForce;
    futures::join!(
        fault.inject(&drill, &second_of_one),
        fault.inject(&drill, &first_of_other)
    );
    drill.trains(2, first).await;
    drill.ends_well(2 * fault.incidents(), &[]).await;
    let progress = drill.status().await.unwrap().progress.unwrap().progress;
    assert_eq!(progress.repeated_steps, 0, "{}", drill.audit());
    drill.compare_with_undisturbed_run();
    drill.delete().await;
}
