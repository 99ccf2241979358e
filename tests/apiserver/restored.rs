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

use crate::faults::proxy::Proxy;
use crate::stage::{NAMESPACE, SOON, Stage, ended};

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
async fn generations(stage: &Stage) -> Vec<u64> {
    let pods = stage.pods(NAMESPACE).list(&ListParams::default()).await;
    let pods = pods.unwrap().items.into_iter();
    let documents = pods.filter_map(|pod| pod.annotations().get(labels::MEMBERSHIP).cloned());
    let documents = documents.filter_map(|text| Membership::parse(&text).unwrap());
    documents.map(|document| document.generation).collect()
}

/// A worker that follows this generation crashes, its kubelet starts it again, and the job trains on in a newer one.
async fn crashes_and_trains_on(stage: &Stage, follows: u64) {
    let (pods, parameters) = (stage.pods(NAMESPACE), PatchParams::default());
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
    stage.starts_again(&name).await;
    let trains_on = until("it trains on", SOON, || async {
        let all = generations(stage).await;
        Ok((all.len() == 2 && all.iter().all(|it| *it > follows)).then_some(()))
    });
    if trains_on.await.is_err() {
        let status = stage.job(NAMESPACE).await.status;
        let told = generations(stage).await;
        panic!("nobody is told of a generation after {follows}, but of {told:?}: {status:#?}");
    }
    stage.reaches(NAMESPACE, "Training").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_goes_on_when_etcd_was_restored_from_an_older_backup() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    stage.apply(NAMESPACE, 2).await;
    stage.trains(NAMESPACE).await;
    let backup = stage.directory.path().join("backup");
    let server = &stage.server;
    server.restart(|etcd| copy(etcd, &backup), 0).await.unwrap();
    for generation in 1..=3 {
        crashes_and_trains_on(&stage, generation).await;
    }
    let newest = stage.job(NAMESPACE).await.resource_version();
    let later = version(newest.as_deref()) + 100;
    let server = &stage.server;
    let restored = server.restart(|etcd| copy(&backup, etcd), later);
    restored.await.unwrap();
    assert_eq!(generations(&stage).await, [1, 1], "it is as it was");
    // The agents follow generation 4, and ignore documents that are not newer.
    crashes_and_trains_on(&stage, 4).await;
    let status = stage.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 1, "the others are forgotten");
    stage.kubelet(NAMESPACE, Some((0, Reason::Completed))).await;
    stage.reaches(NAMESPACE, "Completed").await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_a_restored_etcd_has_forgotten_costs_no_worker_its_pod() {
    let stage = Stage::new().await;
    let proxy = Proxy::start(stage.server.client("operator").unwrap()).await;
    let operator = stage.operator_through(proxy.config(), NAMESPACE);
    stage.apply(NAMESPACE, 2).await;
    stage.trains(NAMESPACE).await;
    let backup = stage.directory.path().join("backup");
    let server = &stage.server;
    server.restart(|etcd| copy(etcd, &backup), 0).await.unwrap();
    let before = stage.uids(NAMESPACE).await;
    stage.kubelet(NAMESPACE, Some((0, Reason::Completed))).await;
    let looks = |result| {
        let series = format!("roundhouse_operator_reconciles_total{{result=\"{result}\"}}");
        operator.metric(&series)
    };
    let knows = || async { Ok(looks("Succeeded").filter(|times| *times > 1.0)) };
    let knows = until("it knows that the job has ended", SOON, knows).await;
    knows.unwrap();
    let newest = stage.job(NAMESPACE).await.resource_version();
    let later = version(newest.as_deref()) + 100;
    // The watch of the pods is the first to come back: the workers run, and their job has ended, as far as is known.
    proxy.traffic.refuse("trainingjobs");
    let restored = server.restart(|etcd| copy(&backup, etcd), later);
    restored.await.unwrap();
    let asks = || async { Ok(looks("Confirm").filter(|times| *times > 0.0)) };
    let asks = until("it asks before it deletes", SOON, asks).await;
    asks.unwrap();
    proxy.traffic.allow();
    stage.reaches(NAMESPACE, "Training").await;
    stage.kubelet(NAMESPACE, Some((0, Reason::Completed))).await;
    stage.reaches(NAMESPACE, "Completed").await;
    assert_eq!(stage.uids(NAMESPACE).await, before);
    operator.stop().await;
}
