//! The API server refuses everything for minutes, its etcd is slow or full, or the operator's token or the API server's
//! certificate authority is replaced. Each time a worker crashes meanwhile. Thereafter the job soon goes on, with one incident
//! and the pods that it had.

use std::path::Path;
use std::time::Duration;

use kube::Config;
use roundhouse_tests::cluster::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::environment::{Environment, NAMESPACE, TIMEOUT};
use crate::faults::fault::Refusal;
use crate::faults::proxy::Proxy;

/// The worker that crashes.
const CRASHES: &str = "digits-worker-1-0";
/// From the end of the trouble until the job trains again.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);
/// Asks to come back later than anybody should.
const NEVER: u32 = u32::MAX;

/// The job trains in its second generation soon, with one incident and these pods.
async fn goes_on(env: &Environment, pods: &[Option<String>]) {
    let goes_on = until("it goes on", RECOVERS_WITHIN, || async {
        let status = env.job(NAMESPACE).await.status.unwrap_or_default();
        let generation = status.membership.as_ref().map(|it| it.generation);
        let is = generation == Some(2) && status.state.as_deref() == Some("Training");
        Ok(is.then_some(status))
    });
    let status = goes_on.await.unwrap();
    assert_eq!(status.incidents.total, 1);
    assert_eq!(env.uids(NAMESPACE).await, pods);
}

/// A job of two that trains, and its pods.
async fn training(env: &Environment) -> Vec<Option<String>> {
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    env.uids(NAMESPACE).await
}

/// A worker crashes while all that the operator asks is refused, in turn with these words for so long.
async fn is_refused(env: &Environment, time: Duration, refusals: &[Refusal]) {
    let proxy = Proxy::start(env.server.client("operator").unwrap()).await;
    let operator = env.operator_of_namespace(proxy.config(), NAMESPACE);
    let pods = training(env).await;
    for (number, refusal) in refusals.iter().enumerate() {
        proxy.traffic.refuse_all(Some(*refusal));
        if number == 0 {
            env.crash_container(CRASHES).await;
        }
        sleep(time).await;
    }
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0, "nothing came through");
    proxy.traffic.refuse_all(None);
    goes_on(env, &pods).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_recovers_despite_excessive_retry_after() {
    let env = Environment::new().await;
    let refusals = [
        (429, "TooManyRequests", Some(NEVER)),
        (503, "ServiceUnavailable", Some(600)),
    ];
    is_refused(&env, Duration::from_secs(6), &refusals).await;
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
    is_refused(&env, Duration::from_secs(60), &refusals).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_recovers_from_a_full_etcd() {
    let env = Environment::new().await;
    let proxy = Proxy::start(env.server.client("operator").unwrap()).await;
    let operator = env.operator_of_namespace(proxy.config(), NAMESPACE);
    let pods = training(&env).await;
    // The operator hears of the crash when there is no room any more to write what follows from it.
    let unavailable = (503, "ServiceUnavailable", None);
    proxy.traffic.refuse_all(Some(unavailable));
    env.crash_container(CRASHES).await;
    // What etcd itself does when its file has reached the quota: it reads, and stores nothing.
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
    goes_on(&env, &pods).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_recovers_from_slow_etcd_writes() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let pods = training(&env).await;
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
    goes_on(&env, &pods).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute, for which a token is not read again: make test-long runs it"]
async fn replaced_token_is_read_again() {
    let env = Environment::new().await;
    let token = env.directory.path().join("token");
    std::fs::write(&token, "operator").unwrap();
    let mut config: Config = env.server.config("operator").unwrap();
    config.auth_info.token = None;
    config.auth_info.token_file = Some(token.display().to_string());
    let operator = env.operator_of_namespace(config, NAMESPACE);
    let pods = training(&env).await;
    // A kubelet gives a new one long before the old one is refused.
    std::fs::write(&token, "operator-2").unwrap();
    sleep(Duration::from_secs(65)).await;
    env.server.refuse_old_token().await.unwrap();
    env.crash_container(CRASHES).await;
    goes_on(&env, &pods).await;
    let refused =
        "roundhouse_operator_api_calls_total{code=\"401\",resource=\"pods\",verb=\"watch\"}";
    assert_eq!(operator.metric(refused), None);
    operator.stop().await;
}

/// Writes the certificate of the API server's authority, which it makes at its first start, to a file.
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
    let pods = training(&env).await;
    let anew = |etcd: &Path| Ok(std::fs::remove_dir_all(etcd.with_file_name("certs"))?);
    env.server.restart(anew, 0).await.unwrap();
    env.crash_container(CRASHES).await;
    // It trusts the old one alone.
    sleep(Duration::from_secs(5)).await;
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0, "nothing came through");
    write_authority(&env, &authority);
    sleep(Duration::from_secs(60)).await;
    goes_on(&env, &pods).await;
    operator.stop().await;
}
