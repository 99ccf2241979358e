//! A node is lost, cut off, or its kubelet is silent, with a worker on it. These tests run alone,
//! because workers of other jobs may be on the node.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::Api;
use roundhouse_tests::cluster::{DEADLINE, until};
use roundhouse_tests::nodes::local_cluster;

use super::drill::Drill;
use super::large_replicas;
use super::operator;

/// A node with a network namespace of its own. The control plane and the operator run on node1.
const NODE: &str = "node2";
/// Steps of 50 ms: enough until the node is `NotReady`, the worker is replaced, and the node is
/// back.
const STEPS: u64 = 2_400;

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// All processes of the node are killed.
    Lost,
    /// The node's network is cut off, and its processes keep running.
    CutOff,
    /// The node's kubelet is killed, and its containers keep running.
    Silent,
}

/// A fault of a node. The node is repaired when the value is dropped.
pub(super) struct ActiveFault<'a>(Fault, &'a str);

impl<'a> ActiveFault<'a> {
    pub(super) fn start(fault: Fault, name: &'a str) -> Self {
        match fault {
            Fault::Lost => node(&["kill", name]),
            Fault::CutOff => node(&["partition", name, "on"]),
            Fault::Silent => node(&["kubelet", name, "off"]),
        }
        Self(fault, name)
    }
}

impl Drop for ActiveFault<'_> {
    fn drop(&mut self) {
        let Self(fault, name) = self;
        match fault {
            Fault::Lost => node(&["start", name]),
            Fault::CutOff => node(&["partition", name, "off"]),
            Fault::Silent => node(&["kubelet", name, "on"]),
        }
    }
}

fn node(action: &[&str]) {
    local_cluster(&[&["node"], action].concat()).unwrap();
}

pub(super) async fn is_ready(drill: &Drill, name: &str, wanted: bool) {
    let nodes: Api<Node> = Api::all(drill.space.client.clone());
    until(
        "the node's condition Ready is as expected",
        DEADLINE,
        || async {
            let status = nodes.get(name).await?.status.unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            let ready = conditions
                .iter()
                .any(|it| it.type_ == "Ready" && it.status == "True");
            Ok((ready == wanted).then_some(()))
        },
    )
    .await
    .unwrap();
}

pub(super) fn is_on(pod: &Pod, node: &str) -> bool {
    pod.spec.as_ref().and_then(|it| it.node_name.as_deref()) == Some(node)
}

/// The other workers continue, the worker on the node is replaced, and the old pod ends when the
/// node is back.
async fn fail_node(name: &str, fault: Fault, operator_is_away: bool) {
    let drill = Drill::start(name, STEPS, true).await;
    let client = drill.space.client.clone();
    operator::runs(&client, true).await;
    is_ready(&drill, NODE, true).await;
    let first = drill.trains(3, 0).await;
    let on_node = |pod: &Pod| is_on(pod, NODE);
    let members = drill.members(first).await;
    let (on_it, elsewhere): (Vec<_>, Vec<_>) = members.into_iter().partition(on_node);
    assert_eq!(on_it.len(), 1, "one worker on each node");
    if operator_is_away {
        operator::runs(&client, false).await;
    }
    let fault = ActiveFault::start(fault, NODE);
    is_ready(&drill, NODE, false).await;
    if operator_is_away {
        operator::runs(&client, true).await;
    }
    let second = drill.trains(3, first).await;
    assert!(!drill.members(second).await.iter().any(on_node));
    // The worker on the failed node may run, but it must commit no more steps of the old
    // generation.
    let num_committed = drill.num_committed(first);
    drop(fault);
    is_ready(&drill, NODE, true).await;
    drill.wait_until_gone(&on_it[0]).await;
    assert_eq!(drill.num_committed(first), num_committed);
    let survivors: Vec<String> = elsewhere.iter().map(ResourceExt::name_any).collect();
    drill.succeeds(0, &survivors).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_of_a_lost_node_is_replaced() {
    fail_node("e2e-node-lost", Fault::Lost, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitioned_worker_neither_commits_nor_blocks_others() {
    fail_node("e2e-node-cut-off", Fault::CutOff, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_of_a_silent_kubelet_is_replaced() {
    fail_node("e2e-node-silent", Fault::Silent, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_operator_replaces_worker_of_a_lost_node() {
    fail_node("e2e-node-lost-away", Fault::Lost, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_operator_replaces_a_partitioned_worker() {
    fail_node("e2e-node-cut-away", Fault::CutOff, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_operator_replaces_worker_of_a_silent_kubelet() {
    fail_node("e2e-node-silent-away", Fault::Silent, true).await;
}

/// One node has only one pod of a replica of two. Its network is cut off, so the replica is broken
/// although all of its processes run. The other replica trains on, and the pod is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn replica_that_a_partition_divides_is_healed() {
    let drill = large_replicas::drill("e2e-large-cut-off", true).await;
    let first = drill.trains(2, 0).await;
    let pods = drill.members(first).await;
    // The operator runs on node1, so the fault hits another one.
    let num_on = |node: &str| pods.iter().filter(|pod| is_on(pod, node)).count();
    let node = [NODE, "node3"].into_iter().find(|node| num_on(node) == 1);
    let node = node.expect("four pods on three nodes");
    let replicas = drill.replicas(first).await;
    let cut_off = pods.iter().find(|pod| is_on(pod, node)).unwrap();
    let is_broken = |names: &[String; 2]| names.contains(&cut_off.name_any());
    let untouched = replicas.iter().find(|names| !is_broken(names)).unwrap();
    let before = untouched.clone().map(|pod| drill.process_of(&pod));

    let fault = ActiveFault::start(Fault::CutOff, node);
    // The pod may be replaced before the other replica has formed a generation of its own.
    let second = drill.trains(2, first).await;
    drill.has_whole_replicas().await;
    let members = drill.members(second).await;
    assert!(!members.iter().any(|pod| is_on(pod, node)));
    let num_committed = drill.num_committed(first);
    drop(fault);
    is_ready(&drill, node, true).await;
    drill.wait_until_gone(cut_off).await;
    assert_eq!(drill.num_committed(first), num_committed);
    let after = untouched.clone().map(|pod| drill.process_of(&pod));
    assert_eq!(before, after, "the other replica does not restart");
    drill.ends_well(0, untouched).await;
    let audit = drill.audit();
    assert!(!audit.contains("lost"), "{audit}");
    drill.compare_with_undisturbed_run();
    drill.delete().await;
}
