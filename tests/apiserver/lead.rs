//! Several operators on one API server, of which one leads.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use roundhouse_contract::labels::FIELD_MANAGER;
use roundhouse_operator::runtime::leader_election::Terms;
use roundhouse_tests::cluster::until;

use crate::events::told;
use crate::stage::{NAMESPACE, Operator, SOON, Stage};

/// Short, but a busy machine keeps them.
const TERMS: Terms = Terms {
    duration: Duration::from_secs(6),
    renew_within: Duration::from_secs(4),
    period: Duration::from_millis(300),
};

async fn leads(operator: &Operator) {
    until("the operator leads", SOON, || async {
        let leads = operator.metric("roundhouse_operator_leader") == Some(1.0);
        Ok(leads.then_some(()))
    })
    .await
    .unwrap();
}

/// Two operators, of which the first leads, and a job that trains.
async fn two(stage: &Stage, terms: Terms) -> (Operator, Operator) {
    let first = stage.candidate(terms);
    leads(&first).await;
    let second = stage.candidate(terms);
    stage.apply(NAMESPACE, 2).await;
    stage.trains(NAMESPACE).await;
    (first, second)
}

fn follows(operator: &Operator) -> bool {
    operator.metric("roundhouse_operator_leader") == Some(0.0)
}

/// Loses a worker, and waits until it is replaced and the job trains.
async fn is_looked_after(stage: &Stage) {
    let pods = stage.pods(NAMESPACE);
    let all = pods.list(&ListParams::default()).await.unwrap().items;
    let lost = all.iter().max_by_key(|pod| pod.name_any()).unwrap();
    let now = DeleteParams::default().grace_period(0);
    pods.delete(&lost.name_any(), &now).await.unwrap();
    until("the worker is replaced", SOON, || async {
        let all = pods.list(&ListParams::default()).await?.items;
        let is_new = all.len() == 2 && all.iter().all(|pod| pod.uid() != lost.uid());
        Ok(is_new.then_some(()))
    })
    .await
    .unwrap();
    stage.trains(NAMESPACE).await;
}

async fn holder(stage: &Stage) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(stage.client.clone(), NAMESPACE);
    leases
        .get("roundhouse")
        .await
        .unwrap()
        .spec?
        .holder_identity
}

/// Who has written the Lease and the events, as the API server has recorded it.
async fn writers(stage: &Stage) -> BTreeSet<Option<String>> {
    let leases: Api<Lease> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let lease = leases.get("roundhouse").await.unwrap();
    let events = told(stage).await;
    assert!(!events.is_empty());
    let events = events.iter().flat_map(ResourceExt::managed_fields);
    let all = lease.managed_fields().iter().chain(events);
    all.map(|entry| entry.manager.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_is_stopped_hands_over_at_once() {
    let stage = Stage::new().await;
    // Nobody takes it for want of renewals here.
    let terms = Terms {
        duration: SOON * 2,
        renew_within: SOON,
        ..TERMS
    };
    let (first, second) = two(&stage, terms).await;
    assert!(follows(&second));
    first.stop().await;
    leads(&second).await;
    is_looked_after(&stage).await;
    second.stop().await;
    assert_eq!(holder(&stage).await, None, "it is free for the next one");
    let manager = Some(FIELD_MANAGER.to_owned());
    assert_eq!(writers(&stage).await, BTreeSet::from([manager]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_dies_is_followed_when_its_lease_is_over() {
    let stage = Stage::new().await;
    let (mut first, second) = two(&stage, TERMS).await;
    let before = holder(&stage).await;
    first.kill().await;
    leads(&second).await;
    assert_ne!(holder(&stage).await, before);
    is_looked_after(&stage).await;
    let status = stage.job(NAMESPACE).await.status.unwrap();
    assert_eq!(
        status.incidents.total, 0,
        "a pod that was deleted is no incident"
    );
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_the_api_server_does_not_answer_ends_and_another_leads() {
    let stage = Stage::new().await;
    let (first, second) = two(&stage, TERMS).await;
    // No write of it arrives any more, and it does not know.
    first.cut_off();
    leads(&second).await;
    let error = first.ends().await.unwrap_err();
    assert!(error.to_string().contains("is lost"), "{error}");
    is_looked_after(&stage).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_gets_no_answer_is_tried_again_in_time() {
    let stage = Stage::new().await;
    // Time for two tries, also on a busy machine.
    let terms = Terms {
        duration: TERMS.duration * 2,
        renew_within: TERMS.renew_within * 2,
        ..TERMS
    };
    let (first, second) = two(&stage, terms).await;
    let before = holder(&stage).await;
    first.network.lose_an_answer("/leases/roundhouse");
    until("a renewal gets no answer", SOON, || async {
        Ok(first.network.has_lost_one().then_some(()))
    })
    .await
    .unwrap();
    tokio::time::sleep(terms.duration).await;
    assert_eq!(holder(&stage).await, before);
    assert_eq!(first.metric("roundhouse_operator_leader"), Some(1.0));
    assert!(follows(&second));
    is_looked_after(&stage).await;
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_in_which_no_operator_led_does_not_count_for_a_start_deadline() {
    const DEADLINE: Duration = Duration::from_secs(5);
    let stage = Stage::new().await;
    let mut first = stage.candidate(TERMS);
    leads(&first).await;
    // It knows the job from its caches before it leads.
    let second = stage.candidate(TERMS);
    stage.apply(NAMESPACE, 2).await;
    stage.reaches(NAMESPACE, "WaitingForWorkers").await;
    first.kill().await;
    // It is over when the lease is.
    assert!(DEADLINE < TERMS.duration);
    let spec = serde_json::json!({"startDeadlineSeconds": DEADLINE.as_secs()});
    stage.edit(&spec).await.unwrap();
    leads(&second).await;
    let led = Instant::now();
    let job = stage.reaches(NAMESPACE, "StartDeadlineExceeded").await;
    assert!(job.status.unwrap().is_terminal());
    // It led a moment before that was seen.
    assert!(led.elapsed() > DEADLINE / 2, "{:?}", led.elapsed());
    second.stop().await;
}
