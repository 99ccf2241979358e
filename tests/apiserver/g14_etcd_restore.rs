//! etcd is restored from an older backup while the operator runs.

use std::path::Path;
use std::process::Command;

use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use roundhouse_contract::termination::Reason;
use roundhouse_contract::{Membership, labels};
use roundhouse_operator::runtime::api::metadata::version;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, TIMEOUT, ended};
use crate::g13_faults::proxy::Proxy;

/// Replaces the directory `to` by a copy of `from`.
pub(crate) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    let copied = Command::new("cp").arg("-r").args([from, to]).status()?;
    anyhow::ensure!(copied.success(), "{} is not copied", from.display());
    Ok(())
}

/// The generations in the memberships of the pods.
async fn generations(env: &Environment) -> Vec<u64> {
    let pods = env.pods(NAMESPACE).list(&ListParams::default()).await;
    let pods = pods.unwrap().items.into_iter();
    let documents = pods.filter_map(|pod| pod.annotations().get(labels::MEMBERSHIP).cloned());
    let documents = documents.filter_map(|text| Membership::parse(&text).unwrap());
    documents.map(|document| document.generation).collect()
}

/// Crashes and restarts a worker that reports this generation, and waits until the job trains in a
/// newer one.
async fn crash_and_train(env: &Environment, reported: u64) {
    let (pods, parameters) = (env.pods(NAMESPACE), PatchParams::default());
    let pod = pods.get("digits-worker-1-0").await.unwrap();
    let mut end = ended(&pod, 1, Reason::Crashed);
    let container = &mut end["status"]["containerStatuses"][0];
    let message = &mut container["state"]["terminated"]["message"];
    let mut report: Value = serde_json::from_str(message.as_str().unwrap()).unwrap();
    report["generation"] = json!(reported);
    *message = json!(report.to_string());
    let name = pod.name_any();
    let end = Patch::Merge(end);
    pods.patch_status(&name, &parameters, &end).await.unwrap();
    env.restart_container(&name).await;
    let trains = until("the job trains again", TIMEOUT, || async {
        let all = generations(env).await;
        Ok((all.len() == 2 && all.iter().all(|it| *it > reported)).then_some(()))
    });
    if trains.await.is_err() {
        let status = env.job(NAMESPACE).await.status;
        let issued = generations(env).await;
        panic!("expected a generation after {reported}, found {issued:?}: {status:#?}");
    }
    env.until_state(NAMESPACE, "Training").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn generations_exceed_those_before_the_restore() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    let backup = env.directory.path().join("backup");
    let server = &env.server;
    server.restart(|etcd| copy(etcd, &backup), 0).await.unwrap();
    for generation in 1..=3 {
        crash_and_train(&env, generation).await;
    }
    let newest = env.job(NAMESPACE).await.resource_version();
    let later = version(newest.as_deref()) + 100;
    let server = &env.server;
    let restored = server.restart(|etcd| copy(&backup, etcd), later);
    restored.await.unwrap();
    assert_eq!(
        generations(&env).await,
        [1, 1],
        "the pods are those of the backup"
    );
    // The agents are in generation 4 and ignore memberships that are not newer.
    crash_and_train(&env, 4).await;
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(
        status.incidents.total, 1,
        "the restore has reverted the others"
    );
    env.run_kubelet(NAMESPACE, Some((0, Reason::Completed)))
        .await;
    env.until_state(NAMESPACE, "Completed").await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_completion_does_not_delete_running_pods() {
    let env = Environment::new().await;
    let proxy = Proxy::start(env.server.client("operator").unwrap()).await;
    let operator = env.operator_of_namespace(proxy.config(), NAMESPACE);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    let backup = env.directory.path().join("backup");
    let server = &env.server;
    server.restart(|etcd| copy(etcd, &backup), 0).await.unwrap();
    let before = env.uids(NAMESPACE).await;
    env.run_kubelet(NAMESPACE, Some((0, Reason::Completed)))
        .await;
    let reconciles = |result| {
        let series = format!("roundhouse_operator_reconciles_total{{result=\"{result}\"}}");
        operator.metric(&series)
    };
    let knows_end = || async { Ok(reconciles("Succeeded").filter(|times| *times > 1.0)) };
    let knows_end = until(
        "the operator knows that the job has ended",
        TIMEOUT,
        knows_end,
    )
    .await;
    knows_end.unwrap();
    let newest = env.job(NAMESPACE).await.resource_version();
    let later = version(newest.as_deref()) + 100;
    // The pod watch comes back before that of the jobs. So in the caches the workers run and their
    // job has ended.
    proxy.traffic.refuse("trainingjobs");
    let restored = server.restart(|etcd| copy(&backup, etcd), later);
    restored.await.unwrap();
    let confirms = || async { Ok(reconciles("Confirm").filter(|times| *times > 0.0)) };
    let confirms = until("the operator confirms before it deletes", TIMEOUT, confirms).await;
    confirms.unwrap();
    proxy.traffic.allow();
    env.until_state(NAMESPACE, "Training").await;
    env.run_kubelet(NAMESPACE, Some((0, Reason::Completed)))
        .await;
    env.until_state(NAMESPACE, "Completed").await;
    assert_eq!(env.uids(NAMESPACE).await, before);
    operator.stop().await;
}
