//! Something happens to one worker, or to their number, while the operator looks on.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use roundhouse_api::ConditionType;
use roundhouse_tests::cluster::{DEADLINE, until};
use roundhouse_tests::{nodes, processes};
use rustix::process::Signal;
use serde_json::json;

use super::drill::{Drill, JOB};
use super::fault::Fault;

/// Of 50 ms: long enough for a worker to come back.
const STEPS: u64 = 1_000;

async fn a_worker_is_lost_and_comes_back(fault: Fault) {
    let name = format!("e2e-{}", fault.name());
    let drill = Drill::start(&name, STEPS, false).await;
    let first = drill.trains(3, 0).await;
    let (victim, survivors) = fault.victim(&drill.members(first).await);
    fault.strikes(&drill, &victim).await;
    drill.trains(3, first).await;
    drill.succeeds(fault.incidents(), &survivors).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_rank_zero_is_an_incident_and_training_goes_on() {
    a_worker_is_lost_and_comes_back(Fault::KillRankZero).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_killed_rank_is_an_incident_and_training_goes_on() {
    a_worker_is_lost_and_comes_back(Fault::KillAnother).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pod_is_replaced_and_no_incident() {
    a_worker_is_lost_and_comes_back(Fault::Delete).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_by_force_is_replaced_and_no_incident() {
    a_worker_is_lost_and_comes_back(Fault::DeleteByForce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_moves_and_is_no_incident() {
    a_worker_is_lost_and_comes_back(Fault::Drain).await;
}

/// As a container that its runtime has frozen: the agent answers nothing, although its node is sound.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_frozen_is_left_out_and_returns_when_it_runs_again() {
    let drill = Drill::start("e2e-frozen", 2 * STEPS, false).await;
    let first = drill.trains(3, 0).await;
    let mut members = drill.members(first).await;
    let victim = members.remove(1).name_any();
    let survivors: Vec<String> = members.iter().map(ResourceExt::name_any).collect();
    let agent = nodes::agent(&drill.space.name, &victim).unwrap();
    let frozen = [agent, nodes::process(&drill.space.name, &victim).unwrap()];
    let send = |signal| frozen.map(|process| processes::send(process, signal));
    assert_eq!(send(Signal::STOP), [true; 2]);
    let second = drill.trains(2, first).await;
    let message = drill.status().await.unwrap();
    let message = message.front().unwrap().message.clone();
    assert!(message.contains("its agent does not answer"), "{message}");
    assert_eq!(send(Signal::CONT), [true; 2]);
    drill.trains(3, second).await;
    drill.succeeds_after(1..=2, &survivors).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_scaled_down_and_up_again_trains_on() {
    let drill = Drill::start("e2e-scale", STEPS, false).await;
    let mut generation = drill.trains(3, 0).await;
    let mut workers = drill.members(generation).await;
    for replicas in [1, 3] {
        let scale = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        let jobs = drill.space.jobs();
        jobs.patch_scale(JOB, &PatchParams::default(), &scale)
            .await
            .unwrap();
        generation = drill.trains(replicas, generation).await;
        if replicas == 1 {
            workers = drill.members(generation).await;
        }
    }
    let survivors: Vec<String> = workers.iter().map(ResourceExt::name_any).collect();
    drill.succeeds(0, &survivors).await;
}

/// Outside of its bounds an autoscaler asks for no metric.
#[tokio::test(flavor = "multi_thread")]
async fn a_horizontal_pod_autoscaler_scales_a_job() {
    let drill = Drill::start("e2e-autoscaler", 2 * STEPS, false).await;
    let mut generation = drill.trains(3, 0).await;
    let workers = drill.members(generation).await;
    let space = &drill.space;
    let autoscalers: Api<HorizontalPodAutoscaler> =
        Api::namespaced(space.client.clone(), &space.name);
    for replicas in [2, 3] {
        let autoscaler = json!({
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": JOB},
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob", "name": JOB,
                },
                "minReplicas": replicas,
                "maxReplicas": replicas,
            },
        });
        let (apply, patch) = (PatchParams::apply("e2e"), Patch::Apply(&autoscaler));
        autoscalers.patch(JOB, &apply, &patch).await.unwrap();
        generation = drill.trains(replicas, generation).await;
    }
    let survivors: Vec<String> = workers.iter().take(2).map(ResourceExt::name_any).collect();
    drill.succeeds(0, &survivors).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_job_goes_on_where_it_was() {
    let drill = Drill::start("e2e-suspend", STEPS / 2, false).await;
    let first = drill.trains(3, 0).await;
    suspend(&drill, true).await;
    until("the workers have left", DEADLINE, || async {
        let suspended = drill.status().await?.is_true(ConditionType::Suspended);
        Ok((suspended && drill.pods().await?.is_empty()).then_some(()))
    })
    .await
    .unwrap();
    let committed = drill.num_committed(first);
    suspend(&drill, false).await;
    drill.trains(3, first).await;
    // Asked to leave together, they left after a step whose checkpoint they wrote.
    assert_eq!(drill.num_committed(first), committed);
    drill.succeeds(0, &[]).await;
}

async fn suspend(drill: &Drill, suspend: bool) {
    let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
    let jobs = drill.space.jobs();
    jobs.patch(JOB, &PatchParams::default(), &patch)
        .await
        .unwrap();
}
