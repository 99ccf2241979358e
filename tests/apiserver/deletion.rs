//! A job that trains is deleted, and Kubernetes' own garbage collector takes what it owns.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PropagationPolicy};
use roundhouse_tests::cluster::until;

use crate::environment::{Environment, NAMESPACE, TIMEOUT};

/// Starts the garbage collector beside the API server.
fn start_collector(env: &Environment) {
    let kubeconfig = env.server.kubeconfig("test").unwrap();
    let arguments = [
        &*format!("--kubeconfig={}", kubeconfig.display()),
        "--leader-elect=false",
        "--secure-port=0",
        "--controllers=garbage-collector-controller",
    ];
    let program = "kube-controller-manager";
    env.server.run(program, &arguments).unwrap();
}

async fn policies(env: &Environment) -> Vec<NetworkPolicy> {
    let policies: Api<NetworkPolicy> = Api::namespaced(env.client.clone(), NAMESPACE);
    let all = policies.list(&ListParams::default()).await;
    all.unwrap().items
}

/// The job is gone or about to go, its workers leave, and the rules of its NetworkPolicy are those of another one.
async fn workers_leave_behind_a_policy(how: PropagationPolicy) {
    let env = Environment::new().await;
    start_collector(&env);
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    for pod in env.all_pods(NAMESPACE).await {
        env.bind(&pod.name_any(), "n1").await;
    }
    let [before] = &policies(&env).await[..] else {
        panic!("a job has one NetworkPolicy");
    };
    let parameters = DeleteParams {
        propagation_policy: Some(how),
        ..DeleteParams::default()
    };
    let jobs = env.jobs(NAMESPACE);
    jobs.delete("digits", &parameters).await.unwrap();
    let after = until("there is another policy", TIMEOUT, || async {
        let all = policies(&env).await;
        let is_other = all.len() == 1 && all[0].uid() != before.uid();
        Ok(is_other.then(|| all[0].clone()))
    });
    let after = after.await.unwrap();
    assert_eq!(after.spec, before.spec);
    // It stays for as long as its pods do, and no longer, whether an operator is there or not.
    operator.stop().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let all = env.all_pods(NAMESPACE).await;
    let leave = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    assert!(all.len() == 2 && all.iter().all(leave), "{all:#?}");
    let uids = |all: &[NetworkPolicy]| all.iter().map(ResourceExt::uid).collect::<Vec<_>>();
    assert_eq!(uids(&policies(&env).await), [after.uid()]);
    env.remove_terminating_pods(NAMESPACE).await;
    until("nothing is left", TIMEOUT, || async {
        Ok(policies(&env).await.is_empty().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn background_deletion_keeps_a_policy_for_leaving_pods() {
    workers_leave_behind_a_policy(PropagationPolicy::Background).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreground_deletion_keeps_a_policy_for_leaving_pods() {
    workers_leave_behind_a_policy(PropagationPolicy::Foreground).await;
}
