//! The Helm release is upgraded and rolled back while a job trains. This test runs alone, because
//! all jobs share the operator.

use anyhow::ensure;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use roundhouse_tests::manifests::repository;
use tokio::process::Command;

use super::drill::Drill;
use super::fault::Fault;
use super::operator::{self, NAMESPACE};

const STEPS: u64 = 3_000;

/// Runs helm, and waits until the objects that it installs are ready.
async fn helm(arguments: &[&str]) {
    let mut command = Command::new("helm");
    command.args(arguments).args([
        "--namespace",
        NAMESPACE,
        // Other tests have changed fields of the Deployment.
        "--force-conflicts",
        "--wait",
        "--timeout=2m",
    ]);
    let output = command.current_dir(repository()).output().await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
}

/// The policy annotation of the operator's pod template, which changes with the chart's values.
async fn policy_of_template(client: &Client) -> String {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let spec = deployments.get("roundhouse").await.unwrap().spec.unwrap();
    let annotations = spec.template.metadata.unwrap().annotations.unwrap();
    annotations["roundhouse.dev/policy"].clone()
}

/// The name, UID and number of container restarts of each worker.
async fn workers(drill: &Drill) -> Vec<(String, Option<String>, i32)> {
    let pods = drill.pods().await.unwrap();
    let restarts = |pod: &Pod| {
        let status = pod.status.as_ref();
        let all = status.and_then(|it| it.container_statuses.as_ref());
        all.map_or(0, |all| all.iter().map(|it| it.restart_count).sum())
    };
    let mut workers: Vec<_> = pods
        .iter()
        .map(|pod| (pod.name_any(), pod.uid(), restarts(pod)))
        .collect();
    workers.sort();
    workers
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_upgrade_and_rollback_restart_no_worker() {
    let client = Client::try_default().await.unwrap();
    operator::runs(&client, true).await;
    let drill = Drill::start("e2e-release", STEPS, false).await;
    let first = drill.trains(3, 0).await;
    let (installed, before) = (policy_of_template(&client).await, workers(&drill).await);

    let other = "--set=policy.maxWorkersPerJob=99";
    helm(&[
        "upgrade",
        "roundhouse",
        "charts/roundhouse",
        "--reuse-values",
        other,
    ])
    .await;
    assert_ne!(policy_of_template(&client).await, installed);
    is_unchanged(&drill, first, &before).await.unwrap();
    let (victim, survivors) = Fault::KillAnother.victim(&drill.members(first).await);
    Fault::KillAnother.inject(&drill, &victim).await;
    let second = drill.trains(3, first).await;
    let before = workers(&drill).await;

    helm(&["rollback", "roundhouse"]).await;
    assert_eq!(policy_of_template(&client).await, installed);
    is_unchanged(&drill, second, &before).await.unwrap();
    Fault::Delete.inject(&drill, &victim).await;
    drill.trains(3, second).await;
    drill
        .succeeds(Fault::KillAnother.incidents(), &survivors)
        .await;
}

/// Checks that the job still has the same generation and the same containers.
async fn is_unchanged(
    drill: &Drill,
    generation: u64,
    before: &[(String, Option<String>, i32)],
) -> anyhow::Result<()> {
    let membership = drill.status().await?.membership;
    let now = membership.map(|it| it.generation);
    ensure!(
        now == Some(generation),
        "generation {generation} became {now:?}"
    );
    let after = workers(drill).await;
    ensure!(after == before, "{before:?} became {after:?}");
    Ok(())
}
