//! The operator is stopped during faults of workers, and handles them after its restart. These
//! tests run alone, because all jobs share the operator.

use futures::future::{join, join_all};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use roundhouse_contract::labels;
use roundhouse_tests::cluster::{DEADLINE, until};
use serde_json::json;

use super::drill::{Drill, JOB};
use super::fault::Fault;

pub(super) const NAMESPACE: &str = "roundhouse-system";
/// One operator leads, and the other one is on standby.
const REPLICAS: i32 = 2;
/// More steps than a job trains while the test waits for the other three jobs.
const STEPS: u64 = 2_000;

/// Starts or stops the operator, and waits until it is ready or gone.
pub(super) async fn runs(client: &Client, wanted: bool) {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let scale = Patch::Merge(json!({"spec": {"replicas": if wanted { REPLICAS } else { 0 }}}));
    deployments
        .patch_scale("roundhouse", &PatchParams::default(), &scale)
        .await
        .unwrap();
    let operator = format!("{}=operator", labels::APP_COMPONENT);
    until("the operator is ready or gone", DEADLINE, || async {
        let deployment = deployments.get("roundhouse").await?;
        let ready = deployment.status.and_then(|it| it.ready_replicas);
        let pods = pods.list(&ListParams::default().labels(&operator)).await?;
        let is_done = if wanted {
            ready == Some(REPLICAS)
        } else {
            pods.items.is_empty()
        };
        Ok(is_done.then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_operator_handles_faults_that_it_missed() {
    let faults = [
        Fault::KillRankZero,
        Fault::KillAnother,
        Fault::DeleteByForce,
        Fault::Drain,
    ];
    let client = Client::try_default().await.unwrap();
    runs(&client, true).await;
    let drills = join_all(faults.map(|fault| async move {
        let name = format!("e2e-away-{}", fault.name());
        let drill = Drill::start(&name, STEPS, false).await;
        let first = drill.trains(3, 0).await;
        let (victim, survivors) = fault.victim(&drill.members(first).await);
        (fault, drill, first, victim, survivors)
    }))
    .await;
    runs(&client, false).await;
    let faults = drills
        .iter()
        .map(|(fault, drill, _, victim, _)| fault.inject(drill, victim));
    join_all(faults).await;
    runs(&client, true).await;
    let ends = drills
        .into_iter()
        .map(|(fault, drill, first, _, survivors)| async move {
            drill.trains(3, first).await;
            drill.succeeds(fault.incidents(), &survivors).await;
        });
    join_all(ends).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_operator_handles_a_missed_delete_and_scale() {
    let client = Client::try_default().await.unwrap();
    runs(&client, true).await;
    let (deleted, scaled) = join(
        Drill::start("e2e-away-delete", STEPS, false),
        Drill::start("e2e-away-scale", STEPS, false),
    )
    .await;
    let (first, before) = join(deleted.trains(3, 0), scaled.trains(3, 0)).await;
    let (victim, survivors) = Fault::Delete.victim(&deleted.members(first).await);
    let members = scaled.members(before).await;
    let stay: Vec<String> = members.iter().take(2).map(ResourceExt::name_any).collect();
    runs(&client, false).await;
    Fault::Delete.inject(&deleted, &victim).await;
    let scale = Patch::Merge(json!({"spec": {"replicas": 2}}));
    let jobs = scaled.space.jobs();
    jobs.patch_scale(JOB, &PatchParams::default(), &scale)
        .await
        .unwrap();
    runs(&client, true).await;
    join(deleted.trains(3, first), scaled.trains(2, before)).await;
    Box::pin(join(
        deleted.succeeds(0, &survivors),
        scaled.succeeds(0, &stay),
    ))
    .await;
}
