//! A machine is lost, cut off, or silent, with the worker on it. Not beside other tests: their workers may
//! be on it, too.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::Api;
use roundhouse_tests::cluster::{DEADLINE, until};
use roundhouse_tests::nodes::local_cluster;

use super::drill::Drill;
use super::operator;

/// In a box of its own; control plane and operator are elsewhere.
const NODE: &str = "node2";
/// Of 50 ms: until the node is given up, the worker is replaced, and the node is back.
const STEPS: u64 = 2_400;

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// All its processes end at once.
    Lost,
    /// Its network ends, and its processes do not know.
    CutOff,
    /// Its kubelet ends, and nothing else.
    Silent,
}

/// A fault of a node that lasts; when it is dropped the node heals.
pub(super) struct Lasting<'a>(Fault, &'a str);

impl<'a> Lasting<'a> {
    pub(super) fn begins(fault: Fault, name: &'a str) -> Self {
        match fault {
            Fault::Lost => node(&["kill", name]),
            Fault::CutOff => node(&["partition", name, "on"]),
            Fault::Silent => node(&["kubelet", name, "off"]),
        }
        Self(fault, name)
    }
}

impl Drop for Lasting<'_> {
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
    until("the node's state is known", DEADLINE, || async {
        let status = nodes.get(name).await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let ready = conditions
            .iter()
            .any(|it| it.type_ == "Ready" && it.status == "True");
        Ok((ready == wanted).then_some(()))
    })
    .await
    .unwrap();
}

pub(super) fn is_on(pod: &Pod, node: &str) -> bool {
    pod.spec.as_ref().and_then(|it| it.node_name.as_deref()) == Some(node)
}

/// The others continue, the worker is replaced, and what comes back with the node ends.
async fn a_node_fails(name: &str, fault: Fault, operator_is_away: bool) {
    let drill = Drill::start(name, STEPS, true).await;
    let client = drill.space.client.clone();
    operator::runs(&client, true).await;
    is_ready(&drill, NODE, true).await;
    let first = drill.trains(3, 0).await;
    let on_node = |pod: &Pod| is_on(pod, NODE);
    let members = drill.members(first).await;
    let (there, elsewhere): (Vec<_>, Vec<_>) = members.into_iter().partition(on_node);
    assert_eq!(there.len(), 1, "one worker on each node");
    if operator_is_away {
        operator::runs(&client, false).await;
    }
    let lasting = Lasting::begins(fault, NODE);
    is_ready(&drill, NODE, false).await;
    if operator_is_away {
        operator::runs(&client, true).await;
    }
    let second = drill.trains(3, first).await;
    assert!(!drill.members(second).await.iter().any(on_node));
    // Who is left behind commits nothing any more, cut off or not.
    let left_behind = drill.num_committed(first);
    drop(lasting);
    is_ready(&drill, NODE, true).await;
    drill.is_gone(&there[0]).await;
    assert_eq!(drill.num_committed(first), left_behind);
    let survivors: Vec<String> = elsewhere.iter().map(ResourceExt::name_any).collect();
    drill.succeeds(0, &survivors).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_a_lost_machine_is_replaced() {
    a_node_fails("e2e-node-lost", Fault::Lost, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_cut_off_neither_commits_nor_blocks_anybody() {
    a_node_fails("e2e-node-cut-off", Fault::CutOff, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_kubelet_is_silent_is_replaced() {
    a_node_fails("e2e-node-silent", Fault::Silent, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_was_away_when_a_machine_was_lost_catches_up() {
    a_node_fails("e2e-node-lost-away", Fault::Lost, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_was_away_when_a_worker_was_cut_off_catches_up() {
    a_node_fails("e2e-node-cut-away", Fault::CutOff, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_was_away_when_a_kubelet_fell_silent_catches_up() {
    a_node_fails("e2e-node-silent-away", Fault::Silent, true).await;
}
