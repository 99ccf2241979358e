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

use crate::faults::fault::Refusal;
use crate::faults::proxy::Proxy;
use crate::stage::{NAMESPACE, SOON, Stage};

/// The worker that crashes.
const CRASHES: &str = "digits-worker-1-0";
/// From the end of the trouble until the job trains again.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);
/// Asks to come back later than anybody should.
const NEVER: u32 = u32::MAX;

/// The job trains in its second generation soon, with one incident and these pods.
async fn goes_on(stage: &Stage, pods: &[Option<String>]) {
    let goes_on = until("it goes on", RECOVERS_WITHIN, || async {
        let status = stage.job(NAMESPACE).await.status.unwrap_or_default();
        let generation = status.membership.as_ref().map(|it| it.generation);
        let is = generation == Some(2) && status.state.as_deref() == Some("Training");
        Ok(is.then_some(status))
    });
    let status = goes_on.await.unwrap();
    assert_eq!(status.incidents.total, 1);
    assert_eq!(stage.uids(NAMESPACE).await, pods);
}

/// A job of two that trains, and its pods.
async fn training(stage: &Stage) -> Vec<Option<String>> {
    stage.apply(NAMESPACE, 2).await;
    stage.trains(NAMESPACE).await;
    stage.uids(NAMESPACE).await
}

/// A worker crashes while all that the operator asks is refused, in turn with these words for so long.
async fn is_refused(stage: &Stage, time: Duration, refusals: &[Refusal]) {
    let proxy = Proxy::start(stage.server.client("operator").unwrap()).await;
    let operator = stage.operator_through(proxy.config(), NAMESPACE);
    let pods = training(stage).await;
    for (number, refusal) in refusals.iter().enumerate() {
        proxy.traffic.refuse_all(Some(*refusal));
        if number == 0 {
            stage.crashes(CRASHES).await;
        }
        sleep(time).await;
    }
    let status = stage.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0, "nothing came through");
    proxy.traffic.refuse_all(None);
    goes_on(stage, &pods).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_on_soon_after_an_outage_however_late_the_api_server_wanted_to_be_asked_again() {
    let stage = Stage::new().await;
    let refusals = [
        (429, "TooManyRequests", Some(NEVER)),
        (503, "ServiceUnavailable", Some(600)),
    ];
    is_refused(&stage, Duration::from_secs(6), &refusals).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes six minutes: make test-long runs it"]
async fn a_job_goes_on_within_a_minute_after_an_outage_of_five_minutes() {
    let stage = Stage::new().await;
    let refusals = [
        (503, "ServiceUnavailable", None),
        (500, "InternalError", None),
        (504, "Timeout", None),
        (429, "TooManyRequests", Some(600)),
        (429, "TooManyRequests", Some(NEVER)),
    ];
    is_refused(&stage, Duration::from_secs(60), &refusals).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_etcd_does_not_store_is_stored_when_it_has_room_again() {
    let stage = Stage::new().await;
    let proxy = Proxy::start(stage.server.client("operator").unwrap()).await;
    let operator = stage.operator_through(proxy.config(), NAMESPACE);
    let pods = training(&stage).await;
    // The operator hears of the crash when there is no room any more to write what follows from it.
    let unavailable = (503, "ServiceUnavailable", None);
    proxy.traffic.refuse_all(Some(unavailable));
    stage.crashes(CRASHES).await;
    // What etcd itself does when its file has reached the quota: it reads, and stores nothing.
    let alarm = |action: &str| json!({"action": action, "alarm": "NOSPACE"});
    let (server, path) = (&stage.server, "/v3/maintenance/alarm");
    server.ask_etcd(path, alarm("ACTIVATE")).await.unwrap();
    proxy.traffic.refuse_all(None);
    until("the status is not stored", SOON, || async {
        let refused = "roundhouse_operator_api_calls_total{code=\"500\",resource=\"trainingjobs/status\",verb=\"patch\"}";
        Ok(operator.metric(refused).filter(|times| *times >= 4.0))
    })
    .await
    .unwrap();
    server.ask_etcd(path, alarm("DEACTIVATE")).await.unwrap();
    goes_on(&stage, &pods).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_on_although_each_write_of_etcd_takes_long() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    let pods = training(&stage).await;
    let etcd = stage.server.etcd_process().unwrap();
    let etcd = Pid::from_raw(etcd.try_into().unwrap()).unwrap();
    stage.crashes(CRASHES).await;
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        kill_process(etcd, Signal::STOP).unwrap();
        sleep(Duration::from_millis(900)).await;
        kill_process(etcd, Signal::CONT).unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    goes_on(&stage, &pods).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute, for which a token is not read again: make test-long runs it"]
async fn an_operator_whose_token_is_replaced_reads_the_new_one() {
    let stage = Stage::new().await;
    let token = stage.directory.path().join("token");
    std::fs::write(&token, "operator").unwrap();
    let mut config: Config = stage.server.config("operator").unwrap();
    config.auth_info.token = None;
    config.auth_info.token_file = Some(token.display().to_string());
    let operator = stage.operator_through(config, NAMESPACE);
    let pods = training(&stage).await;
    // A kubelet gives a new one long before the old one is refused.
    std::fs::write(&token, "operator-2").unwrap();
    sleep(Duration::from_secs(65)).await;
    stage.server.refuse_old_token().await.unwrap();
    stage.crashes(CRASHES).await;
    goes_on(&stage, &pods).await;
    let refused =
        "roundhouse_operator_api_calls_total{code=\"401\",resource=\"pods\",verb=\"watch\"}";
    assert_eq!(operator.metric(refused), None);
    operator.stop().await;
}

/// Writes the certificate of the API server's authority, which it makes at its first start, to a file.
fn write_authority(stage: &Stage, file: &Path) {
    let chain = stage.directory.path().join("certs/apiserver.crt");
    let chain = std::fs::read_to_string(chain).unwrap();
    let (_, authority) = chain.rsplit_once("-----BEGIN").unwrap();
    std::fs::write(file, format!("-----BEGIN{authority}")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the authority is read again once a minute: make test-long runs it"]
async fn an_operator_goes_on_when_the_api_server_has_another_certificate_authority() {
    let stage = Stage::new().await;
    let authority = stage.directory.path().join("ca.crt");
    write_authority(&stage, &authority);
    let mut config: Config = stage.server.config("operator").unwrap();
    config.accept_invalid_certs = false;
    config.root_cert_file = Some(authority.clone());
    let operator = stage.operator_through(config, NAMESPACE);
    let pods = training(&stage).await;
    let anew = |etcd: &Path| Ok(std::fs::remove_dir_all(etcd.with_file_name("certs"))?);
    stage.server.restart(anew, 0).await.unwrap();
    stage.crashes(CRASHES).await;
    // It trusts the old one alone.
    sleep(Duration::from_secs(5)).await;
    let status = stage.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0, "nothing came through");
    write_authority(&stage, &authority);
    sleep(Duration::from_secs(60)).await;
    goes_on(&stage, &pods).await;
    operator.stop().await;
}
