//! The cluster's DNS does not answer. Members connect by IP address, so a job starts and forms new
//! generations without it. This test runs alone, because all pods share the DNS servers.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use roundhouse_tests::nodes::main_process;
use roundhouse_tests::processes;
use rustix::process::Signal;

use super::drill::Drill;
use super::fault::Fault;
use super::operator;

const STEPS: u64 = 1_000;

/// The DNS servers' processes. They are stopped until the value is dropped.
struct StoppedServers(Vec<u32>);

impl StoppedServers {
    async fn stop_all(client: &Client) -> Self {
        let pods: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
        let servers = ListParams::default().labels("k8s-app=kube-dns");
        let mut stopped = Self(Vec::new());
        for pod in pods.list(&servers).await.unwrap() {
            let process = main_process("kube-system", &pod.name_any(), "coredns").unwrap();
            assert!(processes::send(process, Signal::STOP));
            stopped.0.push(process);
        }
        assert!(!stopped.0.is_empty(), "the cluster has no DNS server");
        stopped
    }

    /// Whether all stopped processes still exist, so that no replacement answers.
    fn still_exist(&self) -> bool {
        self.0.iter().all(|it| processes::send(*it, Signal::STOP))
    }
}

impl Drop for StoppedServers {
    fn drop(&mut self) {
        for process in &self.0 {
            let _ = processes::send(*process, Signal::CONT);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn job_starts_and_recovers_while_dns_is_silent() {
    let client = Client::try_default().await.unwrap();
    operator::runs(&client, true).await;
    let servers = StoppedServers::stop_all(&client).await;
    let drill = Drill::start("e2e-dns", STEPS, false).await;
    let first = drill.trains(3, 0).await;
    let (victim, survivors) = Fault::KillRankZero.victim(&drill.members(first).await);
    Fault::KillRankZero.inject(&drill, &victim).await;
    drill.trains(3, first).await;
    assert!(servers.still_exist(), "a DNS server was replaced");
    drop(servers);
    drill
        .succeeds(Fault::KillRankZero.incidents(), &survivors)
        .await;
}
