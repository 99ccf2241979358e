//! Changes while no operator runs: of the operator's version or settings, and of a job's template.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use roundhouse_contract::{environment, labels};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

fn image(pod: &Pod) -> String {
    let containers = &pod.spec.as_ref().unwrap().containers;
    let trainer = containers
        .iter()
        .find(|it| it.name == labels::TRAINER_CONTAINER);
    trainer.unwrap().image.clone().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_replaces_a_worker_with_the_old_image() {
    let env = Environment::new().await;
    let before = env.operator_with_arguments(&["--trainer-image=trainer:1"]);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    before.stop().await;

    let after = env.operator_with_arguments(&["--trainer-image=trainer:2"]);
    let lost = env.pods(NAMESPACE).get("digits-worker-1-0").await;
    let lost = lost.unwrap();
    let now = DeleteParams::default().grace_period(0);
    let name = lost.name_any();
    env.pods(NAMESPACE).delete(&name, &now).await.unwrap();
    let images = until("the worker is replaced", TIMEOUT, || async {
        let pods = env.all_pods(NAMESPACE).await;
        let is_replaced = pods.len() == 2 && pods.iter().all(|pod| pod.uid() != lost.uid());
        Ok(is_replaced.then(|| pods.iter().map(image).collect::<Vec<_>>()))
    });
    assert_eq!(images.await.unwrap(), ["trainer:1", "trainer:1"]);
    // The job trains again, and the other pod is the same.
    env.run_until_training(NAMESPACE).await;
    env.pods(NAMESPACE).get("digits-worker-0-0").await.unwrap();

    // After a suspension the job uses the current image.
    env.edit(&json!({"suspend": true})).await.unwrap();
    until("the job has no pods", TIMEOUT, || async {
        Ok(env.all_pods(NAMESPACE).await.is_empty().then_some(()))
    })
    .await
    .unwrap();
    env.edit(&json!({"suspend": false})).await.unwrap();
    let images = until("the pods exist", TIMEOUT, || async {
        let pods = env.all_pods(NAMESPACE).await;
        Ok((pods.len() == 2).then(|| pods.iter().map(image).collect::<Vec<_>>()))
    });
    assert_eq!(images.await.unwrap(), ["trainer:2", "trainer:2"]);
    after.stop().await;
}

/// The values of a pod that the operator's settings decide: its number of processes, its user, and
/// the architecture of its node.
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
async fn upgrade_keeps_the_pod_settings_of_running_jobs() {
    let env = Environment::new().await;
    let before = env.operator_with_arguments(&[
        "--gpu-resources=example.com/a100",
        "--trainer-architecture=arm64",
    ]);
    let mut four = job(2);
    let limits = json!({"limits": {"example.com/a100": "4"}});
    let containers = json!([{"name": "trainer", "resources": limits}]);
    four["spec"]["workers"]["template"] = json!({"spec": {"containers": containers}});
    env.create(NAMESPACE, four).await;
    env.run_until_training(NAMESPACE).await;
    before.stop().await;
    let uids = env.uids(NAMESPACE).await;

    let after = env.operator_with_arguments(&["--fixed-users=false"]);
    let now = DeleteParams::default().grace_period(0);
    let lost = env.pods(NAMESPACE).delete("digits-worker-1-0", &now).await;
    lost.unwrap();
    let created = until("the worker is replaced", TIMEOUT, || async {
        let pods = env.all_pods(NAMESPACE).await;
        let created = pods.into_iter().find(|pod| !uids.contains(&pod.uid()));
        Ok(created.as_ref().map(of_settings))
    });
    let as_before = ("4".to_owned(), Some(65_532), Some("arm64".to_owned()));
    assert_eq!(created.await.unwrap(), as_before);
    env.run_until_training(NAMESPACE).await;
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.membership.unwrap().world_size, 8);
    assert_eq!(status.incidents.total, 0);
    after.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn template_edited_without_operator_reaches_all_pods() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    operator.stop().await;
    let before = env.uids(NAMESPACE).await;
    let template = json!({"metadata": {"labels": {"team": "b"}}, "spec": {"containers": []}});
    env.edit(&json!({"suspend": true})).await.unwrap();
    env.edit(&json!({"workers": {"template": template}}))
        .await
        .unwrap();
    env.edit(&json!({"suspend": false})).await.unwrap();

    let operator = env.operator(None);
    until("all pods are new", TIMEOUT, || async {
        let pods = env.all_pods(NAMESPACE).await;
        let is_new = |pod: &Pod| !before.contains(&pod.uid()) && pod.labels()["team"] == "b";
        Ok((pods.len() == 2 && pods.iter().all(is_new)).then_some(()))
    })
    .await
    .unwrap();
    env.run_until_training(NAMESPACE).await;
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0);
    operator.stop().await;
}
