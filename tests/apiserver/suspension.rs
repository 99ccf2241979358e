//! Jobs that are suspended and resumed.

use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use roundhouse_api::ConditionType;
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::stage::{NAMESPACE, SOON, Stage, job};

async fn num_pods(stage: &Stage) -> usize {
    let pods = stage.pods(NAMESPACE).list(&ListParams::default()).await;
    pods.unwrap().items.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_job_has_no_pods_and_a_resumed_one_trains_in_the_next_generation() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    stage.apply(NAMESPACE, 2).await;
    stage.reaches(NAMESPACE, "WaitingForWorkers").await;
    stage.trains(NAMESPACE).await;

    stage.edit(&json!({"suspend": true})).await.unwrap();
    until("all workers are gone", SOON, || async {
        let status = stage.job(NAMESPACE).await.status.unwrap();
        let gone = num_pods(&stage).await == 0 && status.replicas == 0;
        Ok((gone && status.is_true(ConditionType::Suspended)).then_some(()))
    })
    .await
    .unwrap();
    let status = stage.job(NAMESPACE).await.status.unwrap();
    assert!(status.start_time.is_none(), "{status:#?}");
    assert!(!status.is_true(ConditionType::Running));
    assert_eq!(
        (
            status.membership.unwrap().generation,
            status.incidents.total
        ),
        (1, 0)
    );
    let services: Api<Service> = Api::namespaced(stage.client.clone(), NAMESPACE);
    assert!(services.get_opt("digits").await.unwrap().is_some());

    stage.edit(&json!({"suspend": false})).await.unwrap();
    until("it trains again", SOON, || async {
        stage.kubelet(NAMESPACE, None).await;
        let status = stage.job(NAMESPACE).await.status.unwrap();
        let second = status
            .membership
            .as_ref()
            .is_some_and(|m| m.generation == 2);
        Ok((second && status.is_true(ConditionType::Running)).then_some(()))
    })
    .await
    .unwrap();
    let status = stage.job(NAMESPACE).await.status.unwrap();
    assert!(status.start_time.is_some() && !status.is_true(ConditionType::Suspended));
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_created_suspended_costs_one_write_and_can_be_edited() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    let mut suspended = job(1);
    suspended["spec"]["suspend"] = json!(true);
    stage.create(NAMESPACE, suspended).await;
    stage.reaches(NAMESPACE, "Suspended").await;
    // A job that comes later and is worked on shows that nothing more is done for the first.
    stage.apply("other", 1).await;
    stage.reaches("other", "WaitingForWorkers").await;
    assert_eq!(num_pods(&stage).await, 0);

    let template = |team: &str| json!({"workers": {"template": {"metadata": {"labels": {"team": team}}, "spec": {"containers": []}}}});
    stage.edit(&template("a")).await.unwrap();
    let mut resumed = template("b");
    resumed["suspend"] = json!(false);
    stage.edit(&resumed).await.unwrap();
    let pod = until("its pod is made", SOON, || async {
        let pods = stage.pods(NAMESPACE).list(&ListParams::default()).await?;
        Ok(pods.items.into_iter().next())
    })
    .await
    .unwrap();
    assert_eq!(pod.metadata.labels.unwrap()["team"], "b");
    let refused = stage.edit(&template("c")).await.unwrap_err();
    let kube::Error::Api(status) = refused else {
        panic!("{refused}")
    };
    assert!(
        status.message.contains("spec.workers"),
        "{}",
        status.message
    );
    operator.stop().await;
}

/// What becomes of worker 0 while the operator's watch of pods is silent.
enum Behind {
    Gone,
    AnothersOfThatName,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_news_are_late_does_not_hold_up_the_suspension_of_the_others() {
    for behind in [Behind::Gone, Behind::AnothersOfThatName] {
        let stage = Stage::new().await;
        let operator = stage.operator(None);
        stage.apply(NAMESPACE, 3).await;
        stage.trains(NAMESPACE).await;
        operator.network.swallow_pods(true);
        let (pods, first) = (stage.pods(NAMESPACE), "digits-worker-0-0");
        let now = DeleteParams::default().grace_period(0);
        pods.delete(first, &now).await.unwrap();
        let others = match behind {
            Behind::Gone => 0,
            Behind::AnothersOfThatName => {
                let theirs = json!({"metadata": {"name": first}, "spec": {"containers": [{"name": "a", "image": "b"}]}});
                let theirs = serde_json::from_value(theirs).unwrap();
                pods.create(&PostParams::default(), &theirs).await.unwrap();
                1
            }
        };
        stage.edit(&json!({"suspend": true})).await.unwrap();
        until("the other workers are gone", SOON, || async {
            Ok((num_pods(&stage).await == others).then_some(()))
        })
        .await
        .unwrap();
        if others == 0 {
            stage.reaches(NAMESPACE, "Suspended").await;
        }
        operator.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whichever_write_of_a_suspension_is_the_last_one_the_next_operator_goes_on() {
    let stage = Stage::new().await;
    stage.apply(NAMESPACE, 2).await;
    let mut generation = 0;
    for writes in 0..4 {
        let operator = stage.operator(None);
        stage.trains(NAMESPACE).await;
        operator.stop().await;
        let before = stage.job(NAMESPACE).await.status.unwrap();
        let number = before.membership.unwrap().generation;
        assert!(number > generation, "{number} after {generation}");
        generation = number;

        stage.edit(&json!({"suspend": true})).await.unwrap();
        let mut first = stage.operator(Some(writes));
        until("it is cut off, or done", SOON, || async {
            let status = stage.job(NAMESPACE).await.status.unwrap();
            Ok((first.is_cut_off() || status.replicas == 0).then_some(()))
        })
        .await
        .unwrap();
        first.kill().await;
        let second = stage.operator(None);
        stage.reaches(NAMESPACE, "Suspended").await;
        until("all workers are gone", SOON, || async {
            Ok((num_pods(&stage).await == 0).then_some(()))
        })
        .await
        .unwrap();
        second.stop().await;
        let status = stage.job(NAMESPACE).await.status.unwrap();
        assert_eq!(status.incidents.total, 0, "after {writes} writes");
        stage.edit(&json!({"suspend": false})).await.unwrap();
    }
}
