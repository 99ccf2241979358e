//! The operator that leads is cut off, stopped, or replaced by an upgrade, and another one leads. Not beside other tests: it is
//! everybody's operator.

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
use roundhouse_operator::runtime::leader_election::Terms;
use roundhouse_tests::cluster::{DEADLINE, until};
use roundhouse_tests::nodes::main_process;
use roundhouse_tests::processes;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::drill::{Drill, JOB};
use super::fault::Fault;
use super::nodes::{self, Lasting};
use super::operator::{self, NAMESPACE};

/// The Deployment and the Lease.
const NAME: &str = "roundhouse";
const STEPS: u64 = 2_400;
/// Within 15 s on a machine that is not busy.
const SOON: Duration = Duration::from_secs(40);
/// Between two looks at the Lease.
const LOOK: Duration = Duration::from_millis(20);

/// Who leads, as the Lease says.
#[derive(Clone, Debug, PartialEq)]
struct Leader {
    /// Another one each time a process starts.
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

    /// The next one, and how long it took from now on.
    async fn next(&self, client: &Client) -> (Self, Duration) {
        let begun = Instant::now();
        let leads = until("another operator leads", DEADLINE, || async {
            let now = Self::now(client).await?;
            Ok(now.filter(|now| now.identity != self.identity))
        });
        (leads.await.unwrap(), begun.elapsed())
    }

    /// Its name is that of the pod, and when its process started.
    async fn pod(&self, client: &Client) -> Pod {
        let (name, _) = self.identity.rsplit_once('_').unwrap();
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        pods.get(name).await.unwrap()
    }
}

/// Changes the operator's pods, and waits until all are new.
async fn roll_out(client: &Client, template: Value) {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({"spec": {"template": template}}));
    let parameters = PatchParams::default();
    let changed = deployments.patch(NAME, &parameters, &patch).await;
    let wanted = changed.unwrap().metadata.generation;
    let operator = ListParams::default().labels(&format!("{}=operator", labels::APP_COMPONENT));
    until(
        "the new operators are there, and no other",
        DEADLINE,
        || async {
            let deployment = deployments.get(NAME).await?;
            let replicas = deployment.spec.and_then(|spec| spec.replicas);
            let status = deployment.status.unwrap_or_default();
            let num_pods = pods.list(&operator).await?.items.len();
            let so = status.observed_generation >= wanted
                && status.updated_replicas == replicas
                && status.ready_replicas == replicas
                && Some(num_pods) == replicas.and_then(|it| usize::try_from(it).ok());
            Ok(so.then_some(()))
        },
    )
    .await
    .unwrap();
}

/// Where operators run: apart on nodes that a test can take away, or all on the first one.
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

/// Runs a test while the operators are apart, and puts them back also if it fails: other tests take their nodes away.
async fn apart(client: &Client, test: impl Future<Output = ()>) {
    roll_out(client, place(true)).await;
    let outcome = AssertUnwindSafe(test).catch_unwind().await;
    roll_out(client, place(false)).await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_operator_leads_when_the_machine_of_the_first_is_cut_off() {
    let client = Client::try_default().await.unwrap();
    operator::runs(&client, true).await;
    apart(&client, Box::pin(is_cut_off(&client))).await;
}

/// Applies a job, and waits until an operator has looked at it: how long that took. It has no workers.
async fn applied(drill: &Drill) -> Duration {
    let begun = Instant::now();
    let mut job = drill.space.jobs().get(JOB).await.unwrap();
    job.metadata = ObjectMeta {
        name: Some("meanwhile".to_owned()),
        ..ObjectMeta::default()
    };
    (job.spec.suspend, job.status) = (true, None);
    let jobs = drill.space.jobs();
    jobs.create(&PostParams::default(), &job).await.unwrap();
    until("it is looked at", DEADLINE, || async {
        let status = jobs.get("meanwhile").await?.status;
        let is_suspended = status.is_some_and(|it| it.is_true(ConditionType::Suspended));
        Ok(is_suspended.then_some(()))
    })
    .await
    .unwrap();
    begun.elapsed()
}

async fn is_cut_off(client: &Client) {
    let drill = Drill::start("e2e-leader-cut-off", STEPS, true).await;
    let first = drill.trains(3, 0).await;
    let leader = Leader::wait(client).await;
    let pod = leader.pod(client).await;
    let node = pod.spec.and_then(|spec| spec.node_name).unwrap();
    let members = drill.members(first).await;
    let (there, elsewhere): (Vec<_>, Vec<_>) =
        members.into_iter().partition(|it| nodes::is_on(it, &node));
    assert_eq!(there.len(), 1, "one worker on each node");
    let lasting = Lasting::begins(nodes::Fault::CutOff, &node);
    let ((next, took), looked_at) = join(leader.next(client), applied(&drill)).await;
    println!("{node} was cut off, and another operator led after {took:.1?}");
    assert!(took < SOON, "{took:.1?}");
    println!("a job that was applied meanwhile was looked at after {looked_at:.1?}");
    assert!(looked_at < SOON, "{looked_at:.1?}");
    // It knows of the worker that is lost with the node.
    let second = drill.trains(3, first).await;
    assert!(
        !drill
            .members(second)
            .await
            .iter()
            .any(|it| nodes::is_on(it, &node))
    );
    drop(lasting);
    nodes::is_ready(&drill, &node, true).await;
    drill.is_gone(&there[0]).await;
    let now = Leader::wait(client).await;
    assert_eq!(now.identity, next.identity, "nobody takes it back");
    let survivors: Vec<String> = elsewhere.iter().map(ResourceExt::name_any).collect();
    drill.succeeds(0, &survivors).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_stopped_changes_nothing_when_it_continues() {
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
    // In the middle of its work: it has seen nothing of this, and has a plan for what was before.
    Fault::KillAnother.strikes(&drill, &victim).await;
    let (next, _) = leader.next(&client).await;
    let took = stopped.elapsed();
    println!("the leader was stopped, and another operator led after {took:.1?}");
    let second = drill.trains(3, first).await;
    assert!(processes::send(process, Signal::CONT));
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    until("it starts anew", DEADLINE, || async {
        let log = pods.logs(&name, &LogParams::default()).await?;
        let num_starts = log.matches("the operator runs").count();
        Ok((num_starts == 2).then_some(()))
    })
    .await
    .unwrap();
    let status = pods.get(&name).await.unwrap().status.unwrap();
    let containers = status.container_statuses.unwrap();
    assert_eq!(containers[0].restart_count, 0, "that is no crash");
    let now = Leader::wait(&client).await;
    assert_eq!(now.identity, next.identity, "it follows");
    let membership = drill.status().await.unwrap().membership.unwrap();
    assert_eq!(membership.generation, second, "it has changed nothing");
    drill
        .succeeds(Fault::KillAnother.incidents(), &survivors)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_hands_over_while_a_job_trains() {
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
    // Times without a leader.
    let (mut free, mut took) = (None::<Instant>, Vec::new());
    loop {
        tokio::select! {
            () = &mut rollout => break,
            () = sleep(LOOK) => match Leader::now(&client).await.unwrap() {
                None => _ = free.get_or_insert_with(Instant::now),
                Some(_) => took.extend(free.take().map(|since| since.elapsed())),
            },
        }
    }
    let after = Leader::wait(&client).await;
    println!("upgraded; there was no leader for {took:.2?}");
    // It was given back: nobody waited for its end.
    assert!(
        took.iter().sum::<Duration>() < Terms::default().duration,
        "{took:.2?}"
    );
    assert_ne!(after.identity, before.identity);
    after.pod(&client).await;
    assert_eq!(
        drill.status().await.unwrap().membership.unwrap().generation,
        first
    );
    let (victim, survivors) = Fault::KillAnother.victim(&drill.members(first).await);
    Fault::KillAnother.strikes(&drill, &victim).await;
    drill.trains(3, first).await;
    drill
        .succeeds(Fault::KillAnother.incidents(), &survivors)
        .await;
}
