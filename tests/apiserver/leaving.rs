//! A job that trains is deleted, and Kubernetes' own garbage collector takes what it owns.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PropagationPolicy};
use roundhouse_tests::cluster::until;

use crate::stage::{NAMESPACE, SOON, Stage};

/// Starts the garbage collector beside the API server.
fn start_collector(stage: &Stage) {
    let kubeconfig = stage.server.kubeconfig("test").unwrap();
    let arguments = [
        &*format!("--kubeconfig={}", kubeconfig.display()),
        "--leader-elect=false",
        "--secure-port=0",
        "--controllers=garbage-collector-controller",
    ];
    let program = "kube-controller-manager";
    stage.server.run(program, &arguments).unwrap();
}

async fn policies(stage: &Stage) -> Vec<NetworkPolicy> {
    let policies: Api<NetworkPolicy> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let all = policies.list(&ListParams::default()).await;
    all.unwrap().items
}

/// The job is gone or about to go, its workers leave, and the rules of its NetworkPolicy are those of another one.
async fn workers_leave_behind_a_policy(how: PropagationPolicy) {
    let stage = Stage::new().await;
    start_collector(&stage);
    let operator = stage.operator(None);
    stage.apply(NAMESPACE, 2).await;
    stage.trains(NAMESPACE).await;
    for pod in stage.all_pods(NAMESPACE).await {
        stage.bind(&pod.name_any(), "n1").await;
    }
    let [before] = &policies(&stage).await[..] else {
        panic!("a job has one NetworkPolicy");
    };
    let parameters = DeleteParams {
        propagation_policy: Some(how),
        ..DeleteParams::default()
    };
    let jobs = stage.jobs(NAMESPACE);
    jobs.delete("digits", &parameters).await.unwrap();
    let after = until("there is another policy", SOON, || async {
        let all = policies(&stage).await;
        let is_other = all.len() == 1 && all[0].uid() != before.uid();
        Ok(is_other.then(|| all[0].clone()))
    });
    let after = after.await.unwrap();
    assert_eq!(after.spec, before.spec);
    // It stays for as long as its pods do, and no longer, whether an operator is there or not.
    operator.stop().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let all = stage.all_pods(NAMESPACE).await;
    let leave = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    assert!(all.len() == 2 && all.iter().all(leave), "{all:#?}");
    let uids = |all: &[NetworkPolicy]| all.iter().map(ResourceExt::uid).collect::<Vec<_>>();
    assert_eq!(uids(&policies(&stage).await), [after.uid()]);
    stage.removes_leaving(NAMESPACE).await;
    until("nothing is left", SOON, || async {
        Ok(policies(&stage).await.is_empty().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_a_deleted_job_have_a_policy_until_they_have_left() {
    workers_leave_behind_a_policy(PropagationPolicy::Background).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_a_job_that_waits_for_them_have_a_policy_until_they_have_left() {
    workers_leave_behind_a_policy(PropagationPolicy::Foreground).await;
}
