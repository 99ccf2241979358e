//! Jobs from creation to their end, and the requests to the API server that this takes.

use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
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
    until("all pods exist", TIMEOUT, || async {
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
    // Agents require the nonce from clients that read a worker's progress.
    assert_eq!(raised.nonce.len(), 32, "{}", raised.nonce);
    assert!(places.iter().all(|place| place.nonce == raised.nonce));

    env.run_kubelet(NAMESPACE, Some((0, Reason::Completed)))
        .await;
    let job = env.until_state(NAMESPACE, "Completed").await;
    assert_eq!(job.status.unwrap().progress.unwrap().percent, "100%");
    // The event of the success is the operator's last request, after that for the status.
    let events: Api<Event> = Api::namespaced(env.client.clone(), NAMESPACE);
    until("the success is published", TIMEOUT, || async {
        let events = events.list(&ListParams::default()).await?;
        let mut reasons = events
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

    // An edit that changes nothing for the operator causes no request.
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
