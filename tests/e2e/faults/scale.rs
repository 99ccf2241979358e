//! Changes of a training job's number of workers, and its suspension.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use roundhouse_api::ConditionType;
use roundhouse_tests::cluster::{DEADLINE, until};
use serde_json::json;

use super::drill::{Drill, JOB};

/// Steps of 50 ms: enough until all changes are made.
const STEPS: u64 = 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn job_scaled_down_and_up_keeps_training() {
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

/// The bounds of the autoscaler force the number of replicas, so it needs no metric.
#[tokio::test(flavor = "multi_thread")]
async fn horizontal_pod_autoscaler_scales_a_job() {
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
async fn suspended_job_resumes_at_its_last_step() {
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
    // All workers were asked to leave at once. They left after a step whose checkpoint they saved.
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
