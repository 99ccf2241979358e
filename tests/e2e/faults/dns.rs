//! The cluster's DNS answers nobody. Members know each other by address, so a job begins and re-forms all the same.
//! Not beside other tests: it is everybody's DNS.

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

/// DNS servers that stand still until this is dropped.
struct Silent(Vec<u32>);

impl Silent {
    async fn all(client: &Client) -> Self {
        let pods: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
        let servers = ListParams::default().labels("k8s-app=kube-dns");
        let mut silent = Self(Vec::new());
        for pod in pods.list(&servers).await.unwrap() {
            let process = main_process("kube-system", &pod.name_any(), "coredns").unwrap();
            assert!(processes::send(process, Signal::STOP));
            silent.0.push(process);
        }
        assert!(!silent.0.is_empty(), "there is no DNS server");
        silent
    }

    /// None of them was replaced.
    fn is_lasting(&self) -> bool {
        self.0.iter().all(|it| processes::send(*it, Signal::STOP))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        for process in &self.0 {
            let _ = processes::send(*process, Signal::CONT);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_begins_and_goes_on_after_a_crash_while_dns_is_silent() {
    let client = Client::try_default().await.unwrap();
    operator::runs(&client, true).await;
    let silent = Silent::all(&client).await;
    let drill = Drill::start("e2e-dns", STEPS, false).await;
    let first = drill.trains(3, 0).await;
    let (victim, survivors) = Fault::KillRankZero.victim(&drill.members(first).await);
    Fault::KillRankZero.strikes(&drill, &victim).await;
    drill.trains(3, first).await;
    assert!(silent.is_lasting(), "it has answered again");
    drop(silent);
    drill
        .succeeds(Fault::KillRankZero.incidents(), &survivors)
        .await;
}
