//! The API server refuses all requests for minutes, its etcd is slow or full, or the operator's
//! token or the API server's certificate authority is replaced. During each outage a worker
//! crashes. Soon after the outage the job trains again, with one incident and the same pods.

use std::path::Path;
use std::time::Duration;

use kube::Config;
use roundhouse_tests::cluster::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::environment::{Environment, NAMESPACE, TIMEOUT};
use crate::g13_faults::fault::Refusal;
use crate::g13_faults::proxy::Proxy;

/// The worker that crashes during the outage.
const CRASHES: &str = "digits-worker-1-0";
/// Maximum time from the end of the outage until the job trains again.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);
/// A Retry-After that no client should obey.
const NEVER: u32 = u32::MAX;

/// Waits until the job trains in its second generation, and checks that it has one incident and
/// these pods.
async fn recovers(env: &Environment, pods: &[Option<String>]) {
    let recovered = until(
        "the job trains in generation 2",
        RECOVERS_WITHIN,
        || async {
            let status = env.job(NAMESPACE).await.status.unwrap_or_default();
            let generation = status.membership.as_ref().map(|it| it.generation);
            let is = generation == Some(2) && status.state.as_deref() == Some("Training");
            Ok(is.then_some(status))
        },
    );
    let status = recovered.await.unwrap();
    assert_eq!(status.incidents.total, 1);
    assert_eq!(env.uids(NAMESPACE).await, pods);
}

/// Starts a job of two workers, waits until it trains, and returns the UIDs of its pods.
async fn start_training(env: &Environment) -> Vec<Option<String>> {
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    env.uids(NAMESPACE).await
}

/// Checks recovery from an outage. The proxy refuses all requests of the operator, with each
/// refusal for `time`, and a worker crashes meanwhile.
async fn recovers_from_outage(env: &Environment, time: Duration, refusals: &[Refusal]) {
    let proxy = Proxy::start(env.server.client("operator").unwrap()).await;
    let operator = env.operator_of_namespace(proxy.config(), NAMESPACE);
    let pods = start_training(env).await;
    for (number, refusal) in refusals.iter().enumerate() {
        proxy.traffic.refuse_all(Some(*refusal));
        if number == 0 {
            env.crash_container(CRASHES).await;
        }
        sleep(time).await;
    }
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(
        status.incidents.total, 0,
        "the operator could write nothing"
    );
    proxy.traffic.refuse_all(None);
    recovers(env, &pods).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_recovers_despite_excessive_retry_after() {
    let env = Environment::new().await;
    let refusals = [
        (429, "TooManyRequests", Some(NEVER)),
        (503, "ServiceUnavailable", Some(600)),
    ];
    recovers_from_outage(&env, Duration::from_secs(6), &refusals).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes six minutes: make test-long runs it"]
async fn job_recovers_from_a_five_minute_outage() {
    let env = Environment::new().await;
    let refusals = [
        (503, "ServiceUnavailable", None),
        (500, "InternalError", None),
        (504, "Timeout", None),
        (429, "TooManyRequests", Some(600)),
        (429, "TooManyRequests", Some(NEVER)),
    ];
    recovers_from_outage(&env, Duration::from_secs(60), &refusals).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_recovers_from_a_full_etcd() {
    let env = Environment::new().await;
    let proxy = Proxy::start(env.server.client("operator").unwrap()).await;
    let operator = env.operator_of_namespace(proxy.config(), NAMESPACE);
    let pods = start_training(&env).await;
    // The operator must observe the crash only after etcd is full.
    let unavailable = (503, "ServiceUnavailable", None);
    proxy.traffic.refuse_all(Some(unavailable));
    env.crash_container(CRASHES).await;
    // etcd raises this alarm when its file reaches the quota. It then serves reads and refuses
    // writes.
    let alarm = |action: &str| json!({"action": action, "alarm": "NOSPACE"});
    let (server, path) = (&env.server, "/v3/maintenance/alarm");
    server.ask_etcd(path, alarm("ACTIVATE")).await.unwrap();
    proxy.traffic.refuse_all(None);
    until("the status is not stored", TIMEOUT, || async {
        let refused = "roundhouse_operator_api_calls_total{code=\"500\",resource=\"trainingjobs/status\",verb=\"patch\"}";
        Ok(operator.metric(refused).filter(|times| *times >= 4.0))
    })
    .await
    .unwrap();
    server.ask_etcd(path, alarm("DEACTIVATE")).await.unwrap();
    recovers(&env, &pods).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_recovers_from_slow_etcd_writes() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let pods = start_training(&env).await;
    let etcd = env.server.etcd_process().unwrap();
    let etcd = Pid::from_raw(etcd.try_into().unwrap()).unwrap();
    env.crash_container(CRASHES).await;
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        kill_process(etcd, Signal::STOP).unwrap();
        sleep(Duration::from_millis(900)).await;
        kill_process(etcd, Signal::CONT).unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    recovers(&env, &pods).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute, after which the token is read again: make test-long runs it"]
async fn replaced_token_is_read_again() {
    let env = Environment::new().await;
    let token = env.directory.path().join("token");
    std::fs::write(&token, "operator").unwrap();
    let mut config: Config = env.server.config("operator").unwrap();
    config.auth_info.token = None;
    config.auth_info.token_file = Some(token.display().to_string());
    let operator = env.operator_of_namespace(config, NAMESPACE);
    let pods = start_training(&env).await;
    // A kubelet writes the new token long before the old one expires.
    std::fs::write(&token, "operator-2").unwrap();
    sleep(Duration::from_secs(65)).await;
    env.server.refuse_old_token().await.unwrap();
    env.crash_container(CRASHES).await;
    recovers(&env, &pods).await;
    let refused =
        "roundhouse_operator_api_calls_total{code=\"401\",resource=\"pods\",verb=\"watch\"}";
    assert_eq!(operator.metric(refused), None);
    operator.stop().await;
}

/// Writes the certificate of the authority, which the API server creates at its first start, to a
/// file.
fn write_authority(env: &Environment, file: &Path) {
    let chain = env.directory.path().join("certs/apiserver.crt");
    let chain = std::fs::read_to_string(chain).unwrap();
    let (_, authority) = chain.rsplit_once("-----BEGIN").unwrap();
    std::fs::write(file, format!("-----BEGIN{authority}")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the authority is read again once a minute: make test-long runs it"]
async fn replaced_certificate_authority_is_read_again() {
    let env = Environment::new().await;
    let authority = env.directory.path().join("ca.crt");
    write_authority(&env, &authority);
    let mut config: Config = env.server.config("operator").unwrap();
    config.accept_invalid_certs = false;
    config.root_cert_file = Some(authority.clone());
    let operator = env.operator_of_namespace(config, NAMESPACE);
    let pods = start_training(&env).await;
    let remove_certificates =
        |etcd: &Path| Ok(std::fs::remove_dir_all(etcd.with_file_name("certs"))?);
    env.server.restart(remove_certificates, 0).await.unwrap();
    env.crash_container(CRASHES).await;
    // The operator trusts only the old authority.
    sleep(Duration::from_secs(5)).await;
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(
        status.incidents.total, 0,
        "the operator could write nothing"
    );
    write_authority(&env, &authority);
    sleep(Duration::from_secs(60)).await;
    recovers(&env, &pods).await;
    operator.stop().await;
}
