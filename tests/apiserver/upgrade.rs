//! What changes while no operator runs: the operator's own version, and the spec of a suspended job.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use roundhouse_contract::{environment, labels};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::stage::{NAMESPACE, SOON, Stage, job};

fn image(pod: &Pod) -> String {
    let containers = &pod.spec.as_ref().unwrap().containers;
    let trainer = containers
        .iter()
        .find(|it| it.name == labels::TRAINER_CONTAINER);
    trainer.unwrap().image.clone().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_operator_replaces_a_worker_with_the_image_that_the_others_have() {
    let stage = Stage::new().await;
    let before = stage.operator_of(&["--trainer-image=trainer:1"]);
    stage.apply(NAMESPACE, 2).await;
    stage.trains(NAMESPACE).await;
    before.stop().await;

    let after = stage.operator_of(&["--trainer-image=trainer:2"]);
    let lost = stage.pods(NAMESPACE).get("digits-worker-1-0").await;
    let lost = lost.unwrap();
    let now = DeleteParams::default().grace_period(0);
    let name = lost.name_any();
    stage.pods(NAMESPACE).delete(&name, &now).await.unwrap();
    let images = until("the worker is replaced", SOON, || async {
        let pods = stage.all_pods(NAMESPACE).await;
        let is_there = pods.len() == 2 && pods.iter().all(|pod| pod.uid() != lost.uid());
        Ok(is_there.then(|| pods.iter().map(image).collect::<Vec<_>>()))
    });
    assert_eq!(images.await.unwrap(), ["trainer:1", "trainer:1"]);
    // It trains on, and the other pod is the one that it was.
    stage.trains(NAMESPACE).await;
    stage
        .pods(NAMESPACE)
        .get("digits-worker-0-0")
        .await
        .unwrap();

    // A job that is suspended and resumed begins with today's.
    stage.edit(&json!({"suspend": true})).await.unwrap();
    until("it has no pods", SOON, || async {
        Ok(stage.all_pods(NAMESPACE).await.is_empty().then_some(()))
    })
    .await
    .unwrap();
    stage.edit(&json!({"suspend": false})).await.unwrap();
    let images = until("its pods are made", SOON, || async {
        let pods = stage.all_pods(NAMESPACE).await;
        Ok((pods.len() == 2).then(|| pods.iter().map(image).collect::<Vec<_>>()))
    });
    assert_eq!(images.await.unwrap(), ["trainer:2", "trainer:2"]);
    after.stop().await;
}

/// What settings of the operator make of a pod: its processes, its user, and the architecture of its node.
fn of_settings(pod: &Pod) -> (String, Option<i64>, Option<String>) {
    let spec = pod.spec.as_ref().unwrap();
    let mut variables = spec.containers[0].env.iter().flatten();
    let procs = variables.find(|it| it.name == environment::PROCS_PER_WORKER);
    let user = spec.security_context.as_ref();
    let node = spec.node_selector.as_ref();
    (
        procs.unwrap().value.clone().unwrap(),
        user.unwrap().run_as_user,
        node.and_then(|node| node.get("kubernetes.io/arch").cloned()),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_with_other_settings_of_pods_changes_no_job_that_runs() {
    let stage = Stage::new().await;
    let before = stage.operator_of(&[
        "--gpu-resources=example.com/a100",
        "--trainer-architecture=arm64",
    ]);
    let mut four = job(2);
    let limits = json!({"limits": {"example.com/a100": "4"}});
    let containers = json!([{"name": "trainer", "resources": limits}]);
    four["spec"]["workers"]["template"] = json!({"spec": {"containers": containers}});
    stage.create(NAMESPACE, four).await;
    stage.trains(NAMESPACE).await;
    before.stop().await;
    let uids = stage.uids(NAMESPACE).await;

    let after = stage.operator_of(&["--fixed-users=false"]);
    let now = DeleteParams::default().grace_period(0);
    let lost = stage
        .pods(NAMESPACE)
        .delete("digits-worker-1-0", &now)
        .await;
    lost.unwrap();
    let made = until("the worker is replaced", SOON, || async {
        let pods = stage.all_pods(NAMESPACE).await;
        let made = pods.into_iter().find(|pod| !uids.contains(&pod.uid()));
        Ok(made.as_ref().map(of_settings))
    });
    let as_before = ("4".to_owned(), Some(65_532), Some("arm64".to_owned()));
    assert_eq!(made.await.unwrap(), as_before);
    stage.trains(NAMESPACE).await;
    let status = stage.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.membership.unwrap().world_size, 8);
    assert_eq!(status.incidents.total, 0);
    after.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_was_edited_while_no_operator_ran_is_in_all_pods() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    stage.apply(NAMESPACE, 2).await;
    stage.trains(NAMESPACE).await;
    operator.stop().await;
    let before = stage.uids(NAMESPACE).await;
    let template = json!({"metadata": {"labels": {"team": "b"}}, "spec": {"containers": []}});
    stage.edit(&json!({"suspend": true})).await.unwrap();
    stage
        .edit(&json!({"workers": {"template": template}}))
        .await
        .unwrap();
    stage.edit(&json!({"suspend": false})).await.unwrap();

    let operator = stage.operator(None);
    until("all pods are new", SOON, || async {
        let pods = stage.all_pods(NAMESPACE).await;
        let is_new = |pod: &Pod| !before.contains(&pod.uid()) && pod.labels()["team"] == "b";
        Ok((pods.len() == 2 && pods.iter().all(is_new)).then_some(()))
    })
    .await
    .unwrap();
    stage.trains(NAMESPACE).await;
    let status = stage.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0);
    operator.stop().await;
}
