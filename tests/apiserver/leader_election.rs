//! Leader election among several operators on one API server.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use roundhouse_contract::labels::FIELD_MANAGER;
use roundhouse_operator::run::RunError;
use roundhouse_operator::runtime::leader_election::LeaseTiming;
use roundhouse_tests::cluster::until;

use crate::environment::{Environment, NAMESPACE, Operator, TIMEOUT};
use crate::events::published;
use crate::g13_faults::proxy::Proxy;

/// Short times that a busy machine can still keep.
const TERMS: LeaseTiming = LeaseTiming {
    duration: Duration::from_secs(6),
    renew_within: Duration::from_secs(4),
    period: Duration::from_millis(300),
};

async fn until_leader(operator: &Operator) {
    until("the operator leads", TIMEOUT, || async {
        let leads = operator.metric("roundhouse_operator_leader") == Some(1.0);
        Ok(leads.then_some(()))
    })
    .await
    .unwrap();
}

/// Starts two operators, of which the first one leads, and a job that trains.
async fn two_operators(env: &Environment, terms: LeaseTiming) -> (Operator, Operator) {
    let first = env.candidate(terms);
    until_leader(&first).await;
    let second = env.candidate(terms);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    (first, second)
}

fn is_follower(operator: &Operator) -> bool {
    operator.metric("roundhouse_operator_leader") == Some(0.0)
}

/// Deletes a worker, and waits until the leader has replaced it and the job trains.
async fn replaces_a_lost_worker(env: &Environment) {
    let pods = env.pods(NAMESPACE);
    let all = pods.list(&ListParams::default()).await.unwrap().items;
    let lost = all.iter().max_by_key(|pod| pod.name_any()).unwrap();
    let now = DeleteParams::default().grace_period(0);
    pods.delete(&lost.name_any(), &now).await.unwrap();
    until("the worker is replaced", TIMEOUT, || async {
        let all = pods.list(&ListParams::default()).await?.items;
        let is_new = all.len() == 2 && all.iter().all(|pod| pod.uid() != lost.uid());
        Ok(is_new.then_some(()))
    })
    .await
    .unwrap();
    env.run_until_training(NAMESPACE).await;
}

async fn holder(env: &Environment) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(env.client.clone(), NAMESPACE);
    leases
        .get("roundhouse")
        .await
        .unwrap()
        .spec?
        .holder_identity
}

/// The field managers of the Lease and the events.
async fn writers(env: &Environment) -> BTreeSet<Option<String>> {
    let leases: Api<Lease> = Api::namespaced(env.client.clone(), NAMESPACE);
    let lease = leases.get("roundhouse").await.unwrap();
    let events = published(env).await;
    assert!(!events.is_empty());
    let events = events.iter().flat_map(ResourceExt::managed_fields);
    let all = lease.managed_fields().iter().chain(events);
    all.map(|entry| entry.manager.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_leader_hands_over_at_once() {
    let env = Environment::new().await;
    // The Lease is too long to expire in this test.
    let terms = LeaseTiming {
        duration: TIMEOUT * 2,
        renew_within: TIMEOUT,
        ..TERMS
    };
    let (first, second) = two_operators(&env, terms).await;
    assert!(is_follower(&second));
    first.stop().await;
    until_leader(&second).await;
    replaces_a_lost_worker(&env).await;
    second.stop().await;
    assert_eq!(holder(&env).await, None, "the Lease is released");
    let manager = Some(FIELD_MANAGER.to_owned());
    assert_eq!(writers(&env).await, BTreeSet::from([manager]));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_leader_is_replaced_after_lease_expiry() {
    let env = Environment::new().await;
    let (mut first, second) = two_operators(&env, TERMS).await;
    let before = holder(&env).await;
    first.kill().await;
    until_leader(&second).await;
    assert_ne!(holder(&env).await, before);
    replaces_a_lost_worker(&env).await;
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(
        status.incidents.total, 0,
        "a deleted pod is not an incident"
    );
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_off_leader_exits_and_another_leads() {
    let env = Environment::new().await;
    let (first, second) = two_operators(&env, TERMS).await;
    // The API server no longer receives its writes, and the operator does not know this.
    first.cut_off();
    until_leader(&second).await;
    let error = first.wait_for_exit().await.unwrap_err();
    assert!(matches!(error, RunError::LeaseLost(_)), "{error}");
    replaces_a_lost_worker(&env).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_renewal_is_retried_in_time() {
    let env = Environment::new().await;
    // Time for two attempts, even on a busy machine.
    let terms = LeaseTiming {
        duration: TERMS.duration * 2,
        renew_within: TERMS.renew_within * 2,
        ..TERMS
    };
    let (first, second) = two_operators(&env, terms).await;
    let before = holder(&env).await;
    first.network.drop_response_to("/leases/roundhouse");
    until("a renewal gets no answer", TIMEOUT, || async {
        Ok(first.network.has_dropped_response().then_some(()))
    })
    .await
    .unwrap();
    tokio::time::sleep(terms.duration).await;
    assert_eq!(holder(&env).await, before);
    assert_eq!(first.metric("roundhouse_operator_leader"), Some(1.0));
    assert!(is_follower(&second));
    replaces_a_lost_worker(&env).await;
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn start_deadline_excludes_time_without_a_leader() {
    const DEADLINE: Duration = Duration::from_secs(5);
    let env = Environment::new().await;
    let mut first = env.candidate(TERMS);
    until_leader(&first).await;
    // The second operator has the job in its caches before it leads.
    let second = env.candidate(TERMS);
    env.apply(NAMESPACE, 2).await;
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    first.kill().await;
    // The deadline passes before the Lease expires.
    assert!(DEADLINE < TERMS.duration);
    let spec = serde_json::json!({"startDeadlineSeconds": DEADLINE.as_secs()});
    env.edit(&spec).await.unwrap();
    until_leader(&second).await;
    let led = Instant::now();
    let job = env.until_state(NAMESPACE, "StartDeadlineExceeded").await;
    assert!(job.status.unwrap().is_terminal());
    // The operator led for a moment before the test observed it.
    assert!(led.elapsed() > DEADLINE / 2, "{:?}", led.elapsed());
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_that_cannot_renew_exits_and_another_leads() {
    let env = Environment::new().await;
    let proxy = Proxy::start(env.server.client("operator").unwrap()).await;
    let first = env.candidate_with_config(proxy.config(), TERMS);
    until_leader(&first).await;
    let second = env.candidate(TERMS);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    let before = env.uids_of_staying_pods(NAMESPACE).await;

    proxy.traffic.refuse("leases");
    until_leader(&second).await;
    let error = first.wait_for_exit().await.unwrap_err();
    assert!(matches!(error, RunError::LeaseLost(_)), "{error}");
    let job = env.until_state(NAMESPACE, "Training").await;
    let status = job.status.unwrap();
    assert_eq!(status.membership.unwrap().generation, 1);
    assert_eq!(status.incidents.total, 0);
    assert_eq!(env.uids_of_staying_pods(NAMESPACE).await, before);
    second.stop().await;
}
