//! The leading operator is cut off, stopped, or replaced by an upgrade, and another operator leads.
//! These tests run alone, because all jobs share the operator.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::join;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, LogParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use roundhouse_api::ConditionType;
use roundhouse_contract::labels;
use roundhouse_operator::runtime::leader_election::LeaseTiming;
use roundhouse_tests::cluster::{DEADLINE, until};
use roundhouse_tests::nodes::main_process;
use roundhouse_tests::processes;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::drill::{Drill, JOB};
use super::fault::Fault;
use super::nodes::{self, ActiveFault};
use super::operator::{self, NAMESPACE};

/// The name of the Deployment and of the Lease.
const NAME: &str = "roundhouse";
const STEPS: u64 = 2_400;
/// The limit for another operator to lead. On an idle machine it takes up to 15 s.
const SOON: Duration = Duration::from_secs(40);
/// The interval between two reads of the Lease.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The operator that holds the Lease.
#[derive(Clone, Debug, PartialEq)]
struct Leader {
    /// The name of its pod and the start of its process, so each process has another identity.
    identity: String,
}

impl Leader {
    async fn now(client: &Client) -> anyhow::Result<Option<Self>> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
        let spec = leases.get(NAME).await?.spec.unwrap_or_default();
        Ok(spec.holder_identity.map(|identity| Self { identity }))
    }

    async fn wait(client: &Client) -> Self {
        let leads = until("an operator leads", DEADLINE, || Self::now(client));
        leads.await.unwrap()
    }

    /// Waits for the next leader. Returns it, and the duration of the wait.
    async fn next(&self, client: &Client) -> (Self, Duration) {
        let started = Instant::now();
        let leads = until("another operator leads", DEADLINE, || async {
            let now = Self::now(client).await?;
            Ok(now.filter(|now| now.identity != self.identity))
        });
        (leads.await.unwrap(), started.elapsed())
    }

    /// The pod of the leader.
    async fn pod(&self, client: &Client) -> Pod {
        let (name, _) = self.identity.rsplit_once('_').unwrap();
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        pods.get(name).await.unwrap()
    }
}

/// Changes the operator's pod template, and waits until all its pods are new.
async fn roll_out(client: &Client, template: Value) {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({"spec": {"template": template}}));
    let parameters = PatchParams::default();
    let changed = deployments.patch(NAME, &parameters, &patch).await;
    let wanted = changed.unwrap().metadata.generation;
    let operator = ListParams::default().labels(&format!("{}=operator", labels::APP_COMPONENT));
    until("only the new operators exist", DEADLINE, || async {
        let deployment = deployments.get(NAME).await?;
        let replicas = deployment.spec.and_then(|spec| spec.replicas);
        let status = deployment.status.unwrap_or_default();
        let num_pods = pods.list(&operator).await?.items.len();
        let so = status.observed_generation >= wanted
            && status.updated_replicas == replicas
            && status.ready_replicas == replicas
            && Some(num_pods) == replicas.and_then(|it| usize::try_from(it).ok());
        Ok(so.then_some(()))
    })
    .await
    .unwrap();
}

/// A placement of the operators: on different nodes that a test can cut off, or all on node1.
fn place(are_apart: bool) -> Value {
    let nodes = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node1"]},
    ]}]});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": nodes},
    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "kubernetes.io/hostname", "matchLabelKeys": ["pod-template-hash"],
        "labelSelector": {"matchLabels": {labels::APP_COMPONENT: "operator"}},
    }]}});
    if are_apart {
        json!({"spec": {"nodeSelector": null, "affinity": affinity}})
    } else {
        let first = json!({"kubernetes.io/hostname": "node1"});
        json!({"spec": {"nodeSelector": first, "affinity": null}})
    }
}

/// Runs a test while the operators are on different nodes. Moves them back to node1 even if the
/// test fails, because other tests cut off the other nodes.
async fn apart(client: &Client, test: impl Future<Output = ()>) {
    roll_out(client, place(true)).await;
    let outcome = AssertUnwindSafe(test).catch_unwind().await;
    roll_out(client, place(false)).await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_leads_when_the_node_of_the_leader_is_cut_off() {
    let client = Client::try_default().await.unwrap();
    operator::runs(&client, true).await;
    apart(&client, Box::pin(cut_off_leader(&client))).await;
}

/// Applies a suspended job, and returns the time until an operator has reconciled it.
async fn time_to_reconcile(drill: &Drill) -> Duration {
    let started = Instant::now();
    let mut job = drill.space.jobs().get(JOB).await.unwrap();
    job.metadata = ObjectMeta {
        name: Some("meanwhile".to_owned()),
        ..ObjectMeta::default()
    };
    (job.spec.suspend, job.status) = (true, None);
    let jobs = drill.space.jobs();
    jobs.create(&PostParams::default(), &job).await.unwrap();
    until("an operator reconciles the job", DEADLINE, || async {
        let status = jobs.get("meanwhile").await?.status;
        let is_suspended = status.is_some_and(|it| it.is_true(ConditionType::Suspended));
        Ok(is_suspended.then_some(()))
    })
    .await
    .unwrap();
    started.elapsed()
}

async fn cut_off_leader(client: &Client) {
    let drill = Drill::start("e2e-leader-cut-off", STEPS, true).await;
    let first = drill.trains(3, 0).await;
    let leader = Leader::wait(client).await;
    let pod = leader.pod(client).await;
    let node = pod.spec.and_then(|spec| spec.node_name).unwrap();
    let members = drill.members(first).await;
    let (on_it, elsewhere): (Vec<_>, Vec<_>) =
        members.into_iter().partition(|it| nodes::is_on(it, &node));
    assert_eq!(on_it.len(), 1, "one worker on each node");
    let fault = ActiveFault::start(nodes::Fault::CutOff, &node);
    let ((next, took), reconciled) = join(leader.next(client), time_to_reconcile(&drill)).await;
    println!("{node} was cut off, and another operator led after {took:.1?}");
    assert!(took < SOON, "{took:.1?}");
    println!("a job that was applied meanwhile was reconciled after {reconciled:.1?}");
    assert!(reconciled < SOON, "{reconciled:.1?}");
    // The new leader replaces the worker that was lost with the node.
    let second = drill.trains(3, first).await;
    assert!(
        !drill
            .members(second)
            .await
            .iter()
            .any(|it| nodes::is_on(it, &node))
    );
    drop(fault);
    nodes::is_ready(&drill, &node, true).await;
    drill.wait_until_gone(&on_it[0]).await;
    let now = Leader::wait(client).await;
    assert_eq!(now.identity, next.identity, "the former leader leads again");
    let survivors: Vec<String> = elsewhere.iter().map(ResourceExt::name_any).collect();
    drill.succeeds(0, &survivors).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_leader_changes_nothing_when_it_continues() {
    let client = Client::try_default().await.unwrap();
    operator::runs(&client, true).await;
    let drill = Drill::start("e2e-leader-stopped", STEPS, false).await;
    let first = drill.trains(3, 0).await;
    let leader = Leader::wait(&client).await;
    let name = leader.pod(&client).await.name_any();
    let process = main_process(NAMESPACE, &name, "operator").unwrap();
    let (victim, survivors) = Fault::KillAnother.victim(&drill.members(first).await);
    assert!(processes::send(process, Signal::STOP));
    let stopped = Instant::now();
    // The stopped leader has not observed this fault, so it may continue with an outdated plan.
    Fault::KillAnother.inject(&drill, &victim).await;
    let (next, _) = leader.next(&client).await;
    let took = stopped.elapsed();
    println!("the leader was stopped, and another operator led after {took:.1?}");
    let second = drill.trains(3, first).await;
    assert!(processes::send(process, Signal::CONT));
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    until("the former leader restarts", DEADLINE, || async {
        let log = pods.logs(&name, &LogParams::default()).await?;
        let num_starts = log.matches("the operator runs").count();
        Ok((num_starts == 2).then_some(()))
    })
    .await
    .unwrap();
    let status = pods.get(&name).await.unwrap().status.unwrap();
    let containers = status.container_statuses.unwrap();
    assert_eq!(containers[0].restart_count, 0, "its container restarted");
    let now = Leader::wait(&client).await;
    assert_eq!(now.identity, next.identity, "the former leader leads again");
    let membership = drill.status().await.unwrap().membership.unwrap();
    assert_eq!(
        membership.generation, second,
        "the former leader has started a generation"
    );
    drill
        .succeeds(Fault::KillAnother.incidents(), &survivors)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_hands_leadership_over_while_a_job_trains() {
    let client = Client::try_default().await.unwrap();
    operator::runs(&client, true).await;
    let drill = Drill::start("e2e-leader-upgrade", STEPS, false).await;
    let first = drill.trains(3, 0).await;
    let before = Leader::wait(&client).await;
    let now = Timestamp::now().to_string();
    let rollout = roll_out(
        &client,
        json!({"metadata": {"annotations": {"roundhouse.dev/rolled-out": now}}}),
    );
    tokio::pin!(rollout);
    // The durations without a leader.
    let (mut free, mut took) = (None::<Instant>, Vec::new());
    loop {
        tokio::select! {
            () = &mut rollout => break,
            () = sleep(POLL_INTERVAL) => match Leader::now(&client).await.unwrap() {
                None => _ = free.get_or_insert_with(Instant::now),
                Some(_) => took.extend(free.take().map(|since| since.elapsed())),
            },
        }
    }
    let after = Leader::wait(&client).await;
    println!("upgraded; there was no leader for {took:.2?}");
    // The leader released the Lease, so the next operator did not wait until it expired.
    assert!(
        took.iter().sum::<Duration>() < LeaseTiming::default().duration,
        "{took:.2?}"
    );
    assert_ne!(after.identity, before.identity);
    after.pod(&client).await;
    assert_eq!(
        drill.status().await.unwrap().membership.unwrap().generation,
        first
    );
    let (victim, survivors) = Fault::KillAnother.victim(&drill.members(first).await);
    Fault::KillAnother.inject(&drill, &victim).await;
    drill.trains(3, first).await;
    drill
        .succeeds(Fault::KillAnother.incidents(), &survivors)
        .await;
}
