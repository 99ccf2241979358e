//! etcd is lost, and restored from an older backup, while the operator runs.

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
use crate::faults::proxy::Proxy;

/// A directory in the place of another one.
pub(crate) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    let copied = Command::new("cp").arg("-r").args([from, to]).status()?;
    anyhow::ensure!(copied.success(), "{} is not copied", from.display());
    Ok(())
}

/// The generation that the pods are told.
async fn generations(env: &Environment) -> Vec<u64> {
    let pods = env.pods(NAMESPACE).list(&ListParams::default()).await;
    let pods = pods.unwrap().items.into_iter();
    let documents = pods.filter_map(|pod| pod.annotations().get(labels::MEMBERSHIP).cloned());
    let documents = documents.filter_map(|text| Membership::parse(&text).unwrap());
    documents.map(|document| document.generation).collect()
}

/// A worker that follows this generation crashes, its kubelet starts it again, and the job trains on in a newer one.
async fn crashes_and_trains_on(env: &Environment, follows: u64) {
    let (pods, parameters) = (env.pods(NAMESPACE), PatchParams::default());
    let pod = pods.get("digits-worker-1-0").await.unwrap();
    let mut end = ended(&pod, 1, Reason::Crashed);
    let container = &mut end["status"]["containerStatuses"][0];
    let message = &mut container["state"]["terminated"]["message"];
    let mut words: Value = serde_json::from_str(message.as_str().unwrap()).unwrap();
    words["generation"] = json!(follows);
    *message = json!(words.to_string());
    let name = pod.name_any();
    let end = Patch::Merge(end);
    pods.patch_status(&name, &parameters, &end).await.unwrap();
    env.restart_container(&name).await;
    let trains_on = until("it trains on", TIMEOUT, || async {
        let all = generations(env).await;
        Ok((all.len() == 2 && all.iter().all(|it| *it > follows)).then_some(()))
    });
    if trains_on.await.is_err() {
        let status = env.job(NAMESPACE).await.status;
        let told = generations(env).await;
        panic!("nobody is told of a generation after {follows}, but of {told:?}: {status:#?}");
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
        crashes_and_trains_on(&env, generation).await;
    }
    let newest = env.job(NAMESPACE).await.resource_version();
    let later = version(newest.as_deref()) + 100;
    let server = &env.server;
    let restored = server.restart(|etcd| copy(&backup, etcd), later);
    restored.await.unwrap();
    assert_eq!(generations(&env).await, [1, 1], "it is as it was");
    // The agents follow generation 4, and ignore documents that are not newer.
    crashes_and_trains_on(&env, 4).await;
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 1, "the others are forgotten");
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
    let looks = |result| {
        let series = format!("roundhouse_operator_reconciles_total{{result=\"{result}\"}}");
        operator.metric(&series)
    };
    let knows = || async { Ok(looks("Succeeded").filter(|times| *times > 1.0)) };
    let knows = until("it knows that the job has ended", TIMEOUT, knows).await;
    knows.unwrap();
    let newest = env.job(NAMESPACE).await.resource_version();
    let later = version(newest.as_deref()) + 100;
    // The watch of the pods is the first to come back: the workers run, and their job has ended, as far as is known.
    proxy.traffic.refuse("trainingjobs");
    let restored = server.restart(|etcd| copy(&backup, etcd), later);
    restored.await.unwrap();
    let asks = || async { Ok(looks("Confirm").filter(|times| *times > 0.0)) };
    let asks = until("it asks before it deletes", TIMEOUT, asks).await;
    asks.unwrap();
    proxy.traffic.allow();
    env.until_state(NAMESPACE, "Training").await;
    env.run_kubelet(NAMESPACE, Some((0, Reason::Completed)))
        .await;
    env.until_state(NAMESPACE, "Completed").await;
    assert_eq!(env.uids(NAMESPACE).await, before);
    operator.stop().await;
}
