//! Operators of two versions take turns at a job that trains. `make test-long` builds the older one.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::api::DeleteParams;
use roundhouse_contract::{Membership, labels};
use roundhouse_tests::cluster::until;

use crate::process::{OperatorProcess, program};
use crate::stage::{NAMESPACE, SOON, Stage};

const WORKERS: usize = 3;

fn older(stage: &Stage) -> OperatorProcess {
    let program = program("ROUNDHOUSE_OLDER_OPERATOR");
    OperatorProcess::start(stage, "older.log", &program, &[])
}

/// Waits until all workers have been told the generation, and asserts that they were told the same.
async fn are_told(stage: &Stage, generation: u64) {
    let told = until("all are told", SOON, || async {
        stage.kubelet(NAMESPACE, None).await;
        let pods = stage.all_pods(NAMESPACE).await;
        let told = pods.iter().filter_map(|pod| {
            let document = pod.annotations().get(labels::MEMBERSHIP)?;
            Membership::parse(document).ok().flatten()
        });
        let told: Vec<Membership> = told.filter(|it| it.generation == generation).collect();
        Ok((pods.len() == WORKERS && told.len() == WORKERS).then_some(told))
    });
    let told = told.await.unwrap();
    let one_world: BTreeSet<_> = told.iter().map(|it| (&it.nonce, it.world_size())).collect();
    assert_eq!(one_world.len(), 1, "{told:#?}");
    let ranks: BTreeSet<u32> = told.iter().map(|it| it.node_rank).collect();
    assert_eq!(ranks.len(), WORKERS, "{told:#?}");
}

/// A worker is lost; returns when all have been told the next generation. The others are those that they were.
async fn loses_one(stage: &Stage, next: u64) {
    let before = stage.all_pods(NAMESPACE).await;
    let now = DeleteParams::default().grace_period(0);
    let lost = before[usize::try_from(next).unwrap() % WORKERS].name_any();
    stage.pods(NAMESPACE).delete(&lost, &now).await.unwrap();
    are_told(stage, next).await;
    let after = stage.uids(NAMESPACE).await;
    let kept = before.iter().filter(|pod| after.contains(&pod.uid()));
    assert_eq!(kept.count(), WORKERS - 1);
}

/// Nothing changes while an operator looks at the job for the first time.
async fn rests(stage: &Stage, generation: u64) {
    let before = stage.uids(NAMESPACE).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let after = stage.uids(NAMESPACE).await;
    assert_eq!(before, after);
    are_told(stage, generation).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an older operator: make test-long builds it"]
async fn operators_of_two_versions_take_turns_at_a_job_and_no_pod_restarts() {
    let stage = Stage::new().await;
    let mut generation = 1;
    let before = older(&stage);
    stage
        .apply(NAMESPACE, u32::try_from(WORKERS).unwrap())
        .await;
    stage.trains(NAMESPACE).await;
    are_told(&stage, generation).await;
    before.stop();
    for _ in 0..2 {
        let newer = stage.operator(None);
        rests(&stage, generation).await;
        generation += 1;
        loses_one(&stage, generation).await;
        newer.stop().await;

        let before = older(&stage);
        rests(&stage, generation).await;
        generation += 1;
        loses_one(&stage, generation).await;
        before.stop();
    }
    let newer = stage.operator(None);
    rests(&stage, generation).await;
    newer.stop().await;
}
