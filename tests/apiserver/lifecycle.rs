//! Jobs from creation to their end, and what the API server is asked on the way.

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use roundhouse_contract::termination::Reason;
use roundhouse_contract::{Membership, labels};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

const WORKERS: u32 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn job_completes_within_its_api_call_budget() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, WORKERS).await;
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    until("all pods are made", TIMEOUT, || async {
        let pods = env.pods(NAMESPACE).list(&ListParams::default()).await?;
        Ok((pods.items.len() == WORKERS as usize).then_some(()))
    })
    .await
    .unwrap();
    env.run_kubelet(NAMESPACE, None).await;
    let job = env.until_state(NAMESPACE, "Training").await;
    let raised = job.status.unwrap().membership.unwrap();
    assert_eq!(raised.generation, 1);
    let pods = env
        .pods(NAMESPACE)
        .list(&ListParams::default())
        .await
        .unwrap();
    let mut places: Vec<_> = pods
        .iter()
        .map(|pod| {
            Membership::parse(&pod.annotations()[labels::MEMBERSHIP])
                .unwrap()
                .unwrap()
        })
        .collect();
    places.sort_by_key(|place| place.node_rank);
    assert_eq!(
        places
            .iter()
            .map(|place| place.node_rank)
            .collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert!(
        places
            .iter()
            .all(|place| place.members == places[0].members)
    );
    // Agents ask readers of the job for it.
    assert_eq!(raised.nonce.len(), 32, "{}", raised.nonce);
    assert!(places.iter().all(|place| place.nonce == raised.nonce));

    env.run_kubelet(NAMESPACE, Some((0, Reason::Completed)))
        .await;
    let job = env.until_state(NAMESPACE, "Completed").await;
    assert_eq!(job.status.unwrap().progress.unwrap().percent, "100%");
    // The event of the end is the operator's last call; it comes after the status.
    let events: Api<Event> = Api::namespaced(env.client.clone(), NAMESPACE);
    until("the end is told", TIMEOUT, || async {
        let told = events.list(&ListParams::default()).await?;
        let mut reasons = told
            .items
            .iter()
            .filter_map(|event| event.reason.as_deref());
        Ok(reasons.any(|reason| reason == "Succeeded").then_some(()))
    })
    .await
    .unwrap();
    let calls = env.server.operator_calls().unwrap();
    let counted = calls
        .iter()
        .filter(|call| !call.ends_with(" events"))
        .count();
    assert!(counted <= 8 + 2 * WORKERS as usize, "{counted}: {calls:#?}");

    // At rest: a job that changes nothing costs nothing.
    let annotate = json!({"metadata": {"annotations": {"a": "b"}}});
    let patch = Patch::Merge(&annotate);
    env.jobs(NAMESPACE)
        .patch("digits", &PatchParams::default(), &patch)
        .await
        .unwrap();
    operator.stop().await;
    assert_eq!(env.server.operator_calls().unwrap().len(), calls.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn rank_zero_success_stops_the_other_workers() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut script = job(2);
    script["spec"]["trainer"].take();
    script["spec"]["elastic"] = json!({"mode": "Restart"});
    script["spec"]["successPolicy"] = json!("RankZero");
    script["spec"]["workers"]["template"] = json!({"spec": {"containers": [
        {"name": "trainer", "image": "pytorch", "command": ["python", "train.py"]},
    ]}});
    env.create(NAMESPACE, script).await;
    env.run_until_training(NAMESPACE).await;
    let edited = env.edit(&json!({"successPolicy": "AllMembers"})).await;
    let words = edited.unwrap_err().to_string();
    assert!(words.contains("successPolicy is immutable"), "{words}");
    env.end_container("digits-worker-0-0", 0, Reason::Completed)
        .await;
    let status = env
        .until_state(NAMESPACE, "Completed")
        .await
        .status
        .unwrap();
    let message = &status.front().unwrap().message;
    assert!(message.starts_with("rank 0 completed"), "{message}");
    until("the other worker is gone", TIMEOUT, || async {
        let pods = env.pods(NAMESPACE).list(&ListParams::default()).await?;
        let names: Vec<_> = pods.iter().map(ResourceExt::name_any).collect();
        Ok((names == ["digits-worker-0-0"]).then_some(()))
    })
    .await
    .unwrap();
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_names_in_two_namespaces_are_independent() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    env.apply("other", 2).await;
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    env.until_state("other", "WaitingForWorkers").await;
    env.run_kubelet("other", None).await;
    env.until_state("other", "Training").await;
    let first = env.job(NAMESPACE).await.status.unwrap();
    assert!(first.membership.is_none());
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_service_is_reported_and_kept() {
    let env = Environment::new().await;
    let services: Api<Service> = Api::namespaced(env.client.clone(), NAMESPACE);
    let theirs = json!({"metadata": {"name": "digits"}, "spec": {"ports": [{"port": 80}]}});
    let theirs: Service = serde_json::from_value(theirs).unwrap();
    let before = services
        .create(&PostParams::default(), &theirs)
        .await
        .unwrap();
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    let job = env.until_state(NAMESPACE, "NameTaken").await;
    assert!(
        job.status
            .unwrap()
            .front()
            .unwrap()
            .message
            .contains("Service digits")
    );
    assert_eq!(services.get("digits").await.unwrap().meta(), before.meta());
    // The name is tried again once its holder is gone.
    services
        .delete("digits", &DeleteParams::default())
        .await
        .unwrap();
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_pod_costs_a_worker_one_attempt() {
    let env = Environment::new().await;
    let theirs = json!({
        "metadata": {"name": "digits-worker-0-0"},
        "spec": {"containers": [{"name": "a", "image": "b"}]},
    });
    let theirs: Pod = serde_json::from_value(theirs).unwrap();
    let pods = env.pods(NAMESPACE);
    let before = pods.create(&PostParams::default(), &theirs).await.unwrap();
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    until("the next attempt is made", TIMEOUT, || async {
        Ok(pods.get_opt("digits-worker-0-1").await?)
    })
    .await
    .unwrap();
    let after = pods.get("digits-worker-0-0").await.unwrap();
    assert_eq!(after.meta(), before.meta());
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn start_deadline_fails_a_job_with_confirmed_pods() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut late = job(2);
    late["spec"]["startDeadlineSeconds"] = json!(1);
    env.create(NAMESPACE, late).await;
    let job = env.until_state(NAMESPACE, "StartDeadlineExceeded").await;
    assert!(job.status.unwrap().is_terminal());
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_of_another_manager_is_ignored() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut theirs = job(1);
    theirs["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
    env.create(NAMESPACE, theirs).await;
    // A job of ours that comes later and is worked on shows that the other was looked at.
    env.apply("other", 1).await;
    env.until_state("other", "WaitingForWorkers").await;
    assert!(env.job(NAMESPACE).await.status.is_none());
    let pods = env
        .pods(NAMESPACE)
        .list(&ListParams::default())
        .await
        .unwrap();
    assert!(pods.items.is_empty());
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_template_is_reported_in_a_condition() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut wrong = job(1);
    wrong["spec"]["workers"]["template"] = json!({"spec": {"restartPolicy": "Always"}});
    env.create(NAMESPACE, wrong).await;
    let job = env.until_state(NAMESPACE, "InvalidSpec").await;
    let message = job.status.unwrap().front().unwrap().message.clone();
    assert!(
        message.starts_with("spec.workers.template.spec.restartPolicy: "),
        "{message}"
    );
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_pod_is_reported_with_the_server_message() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut wrong = job(1);
    wrong["spec"]["workers"]["template"] = json!({"spec": {"containers": [
        {"name": "trainer", "volumeMounts": [{"name": "none", "mountPath": "/data/x"}]},
    ]}});
    env.create(NAMESPACE, wrong).await;
    let job = env.until_state(NAMESPACE, "Refused").await;
    let status = job.status.unwrap();
    let message = &status.front().unwrap().message;
    assert!(message.contains("volumeMounts[0].name"), "{message}");
    assert!(status.start_time.is_some());
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_job_scales_and_its_trainer_is_immutable() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    env.run_kubelet(NAMESPACE, None).await;
    env.until_state(NAMESPACE, "Training").await;
    for (patch, field) in [
        (json!({"spec": {"trainer": {"epochs": 2}}}), "spec.trainer"),
        (
            json!({"spec": {"workers": {"minReplicas": 2}}}),
            "spec.workers.minReplicas",
        ),
        (json!({"spec": {"managedBy": "me"}}), "spec.managedBy"),
    ] {
        let patch = Patch::Merge(&patch);
        let edited = env
            .jobs(NAMESPACE)
            .patch("digits", &PatchParams::default(), &patch)
            .await;
        let kube::Error::Api(status) = edited.unwrap_err() else {
            panic!("{field}")
        };
        assert_eq!(status.code, 422, "{field}: {}", status.message);
        assert!(
            status.message.contains(field),
            "{field}: {}",
            status.message
        );
    }
    let bigger = Patch::Merge(json!({"spec": {"replicas": 2}}));
    env.jobs(NAMESPACE)
        .patch_scale("digits", &PatchParams::default(), &bigger)
        .await
        .unwrap();
    until("both workers train", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let membership = env.job(NAMESPACE).await.status.unwrap().membership.unwrap();
        Ok((membership.nodes == 2).then_some(()))
    })
    .await
    .unwrap();
    operator.stop().await;
}
