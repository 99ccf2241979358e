//! What changes while no operator runs: the operator's own version, and the spec of a suspended job.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use roundhouse_contract::labels;
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::stage::{NAMESPACE, SOON, Stage};

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
