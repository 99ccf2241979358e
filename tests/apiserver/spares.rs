//! A spare replaces a lost member.

use kube::api::DeleteParams;
use roundhouse_api::ConditionType;
use roundhouse_contract::{Action, Membership, labels};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

#[tokio::test(flavor = "multi_thread")]
async fn spare_replaces_a_lost_member() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut wanted = job(2);
    wanted["spec"]["workers"]["spares"] = json!(1);
    env.create(NAMESPACE, wanted).await;
    env.run_until_training(NAMESPACE).await;
    let status = until("the spare is ready", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let status = env.job(NAMESPACE).await.status.unwrap();
        let spares = status.workers.as_ref().map_or(0, |it| it.spares);
        Ok((spares == 1).then_some(status))
    });
    let status = status.await.unwrap();
    assert_eq!(status.membership.as_ref().unwrap().nodes, 2);
    let scale = env.jobs(NAMESPACE).get_scale("digits").await.unwrap();
    assert_eq!(scale.status.unwrap().replicas, 2);

    // The kubelet does not run any more, so no new pod becomes ready.
    let pods = env.pods(NAMESPACE);
    let place = |pod: &k8s_openapi::api::core::v1::Pod| {
        let text = pod.metadata.annotations.as_ref()?.get(labels::MEMBERSHIP)?;
        Membership::parse(text).ok().flatten()
    };
    let spare = pods.list(&kube::api::ListParams::default()).await.unwrap();
    let (members, spares): (Vec<_>, Vec<_>) = spare
        .items
        .into_iter()
        .partition(|pod| place(pod).is_some());
    assert_eq!((members.len(), spares.len()), (2, 1));
    let name = |pod: &k8s_openapi::api::core::v1::Pod| pod.metadata.name.clone().unwrap();
    let (lost, spare) = (name(&members[1]), name(&spares[0]));
    let now = DeleteParams::default().grace_period(0);
    pods.delete(&lost, &now).await.unwrap();
    until(
        "the spare has replaced the lost member",
        TIMEOUT,
        || async {
            let status = env.job(NAMESPACE).await.status.unwrap();
            let newest = status.membership.as_ref().unwrap();
            let trains = status.is_true(ConditionType::Running);
            Ok((trains && (newest.generation, newest.nodes) == (2, 2)).then_some(()))
        },
    )
    .await
    .unwrap();
    let place = place(&pods.get(&spare).await.unwrap()).unwrap();
    assert_eq!((place.generation, place.action), (2, Action::Join));
    operator.stop().await;
}
