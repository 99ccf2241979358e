//! Suspended and resumed jobs.

use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use roundhouse_api::ConditionType;
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

async fn num_pods(env: &Environment) -> usize {
    let pods = env.pods(NAMESPACE).list(&ListParams::default()).await;
    pods.unwrap().items.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_job_trains_in_the_next_generation() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    env.run_until_training(NAMESPACE).await;

    env.edit(&json!({"suspend": true})).await.unwrap();
    until("all workers are gone", TIMEOUT, || async {
        let status = env.job(NAMESPACE).await.status.unwrap();
        let gone = num_pods(&env).await == 0 && status.replicas == 0;
        Ok((gone && status.is_true(ConditionType::Suspended)).then_some(()))
    })
    .await
    .unwrap();
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert!(status.start_time.is_none(), "{status:#?}");
    assert!(!status.is_true(ConditionType::Running));
    assert_eq!(
        (
            status.membership.unwrap().generation,
            status.incidents.total
        ),
        (1, 0)
    );
    let services: Api<Service> = Api::namespaced(env.client.clone(), NAMESPACE);
    assert!(services.get_opt("digits").await.unwrap().is_some());

    env.edit(&json!({"suspend": false})).await.unwrap();
    until("it trains again", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let status = env.job(NAMESPACE).await.status.unwrap();
        let second = status
            .membership
            .as_ref()
            .is_some_and(|m| m.generation == 2);
        Ok((second && status.is_true(ConditionType::Running)).then_some(()))
    })
    .await
    .unwrap();
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert!(status.start_time.is_some() && !status.is_true(ConditionType::Suspended));
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_created_suspended_is_editable_until_resumed() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut suspended = job(1);
    suspended["spec"]["suspend"] = json!(true);
    env.create(NAMESPACE, suspended).await;
    env.until_state(NAMESPACE, "Suspended").await;
    // After the operator has handled a later job, it has nothing left to do for the first one.
    env.apply("other", 1).await;
    env.until_state("other", "WaitingForWorkers").await;
    assert_eq!(num_pods(&env).await, 0);

    let template = |team: &str| json!({"workers": {"template": {"metadata": {"labels": {"team": team}}, "spec": {"containers": []}}}});
    env.edit(&template("a")).await.unwrap();
    let mut resumed = template("b");
    resumed["suspend"] = json!(false);
    env.edit(&resumed).await.unwrap();
    let pod = until("the pod exists", TIMEOUT, || async {
        let pods = env.pods(NAMESPACE).list(&ListParams::default()).await?;
        Ok(pods.items.into_iter().next())
    })
    .await
    .unwrap();
    assert_eq!(pod.metadata.labels.unwrap()["team"], "b");
    let refused = env.edit(&template("c")).await.unwrap_err();
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

/// What happens to the pod of worker 0 while the operator's pod watch is silent.
enum Change {
    Deleted,
    /// Another owner has created a pod of the same name.
    ReplacedByForeignPod,
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_pod_does_not_delay_a_suspension() {
    for change in [Change::Deleted, Change::ReplacedByForeignPod] {
        let env = Environment::new().await;
        let operator = env.operator(None);
        env.apply(NAMESPACE, 3).await;
        env.run_until_training(NAMESPACE).await;
        operator.network.silence_pod_watch(true);
        let (pods, first) = (env.pods(NAMESPACE), "digits-worker-0-0");
        let now = DeleteParams::default().grace_period(0);
        pods.delete(first, &now).await.unwrap();
        let others = match change {
            Change::Deleted => 0,
            Change::ReplacedByForeignPod => {
                let theirs = json!({"metadata": {"name": first}, "spec": {"containers": [{"name": "a", "image": "b"}]}});
                let theirs = serde_json::from_value(theirs).unwrap();
                pods.create(&PostParams::default(), &theirs).await.unwrap();
                1
            }
        };
        env.edit(&json!({"suspend": true})).await.unwrap();
        until("the other workers are gone", TIMEOUT, || async {
            Ok((num_pods(&env).await == others).then_some(()))
        })
        .await
        .unwrap();
        if others == 0 {
            env.until_state(NAMESPACE, "Suspended").await;
        }
        operator.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_after_any_write_of_a_suspension_is_recovered() {
    let env = Environment::new().await;
    env.apply(NAMESPACE, 2).await;
    let mut generation = 0;
    for writes in 0..4 {
        let operator = env.operator(None);
        env.run_until_training(NAMESPACE).await;
        operator.stop().await;
        let before = env.job(NAMESPACE).await.status.unwrap();
        let number = before.membership.unwrap().generation;
        assert!(number > generation, "{number} after {generation}");
        generation = number;

        env.edit(&json!({"suspend": true})).await.unwrap();
        let mut first = env.operator(Some(writes));
        until(
            "the operator is cut off, or has finished",
            TIMEOUT,
            || async {
                let status = env.job(NAMESPACE).await.status.unwrap();
                Ok((first.is_cut_off() || status.replicas == 0).then_some(()))
            },
        )
        .await
        .unwrap();
        first.kill().await;
        let second = env.operator(None);
        env.until_state(NAMESPACE, "Suspended").await;
        until("all workers are gone", TIMEOUT, || async {
            Ok((num_pods(&env).await == 0).then_some(()))
        })
        .await
        .unwrap();
        second.stop().await;
        let status = env.job(NAMESPACE).await.status.unwrap();
        assert_eq!(status.incidents.total, 0, "after {writes} writes");
        env.edit(&json!({"suspend": false})).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn last_of_many_suspension_edits_wins() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    for suspend in [true, false].repeat(50) {
        env.edit(&json!({"suspend": suspend})).await.unwrap();
    }
    until("both workers train", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let status = env.job(NAMESPACE).await.status.unwrap_or_default();
        let is_suspended = status.is_true(ConditionType::Suspended);
        let trains = status.state.as_deref() == Some("Training") && !is_suspended;
        Ok((trains && env.uids_of_staying_pods(NAMESPACE).await.len() == 2).then_some(()))
    })
    .await
    .unwrap();
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0);
    assert_eq!(status.membership.unwrap().nodes, 2);
    operator.stop().await;
}
