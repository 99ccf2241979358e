//! Node ranks of workers on nodes in two racks. The test is the scheduler.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use roundhouse_contract::{Membership, labels};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::stage::{NAMESPACE, SOON, Stage, job};

const KEY: &str = "example.com/rack";
/// Rack of the node of each worker.
const RACKS: [&str; 4] = ["b", "a", "b", "a"];

fn index(pod: &Pod) -> usize {
    pod.labels()[labels::WORKER_INDEX].parse().unwrap()
}

/// Makes a node in each place, and binds each worker to its own.
async fn place(stage: &Stage) {
    let nodes: Api<Node> = Api::all(stage.client.clone());
    for (at, rack) in RACKS.iter().enumerate() {
        let node = json!({"metadata": {"name": format!("n{at}"), "labels": {KEY: rack}}});
        let node = serde_json::from_value(node).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }
    until("the pods are made", SOON, || async {
        Ok((stage.all_pods(NAMESPACE).await.len() == RACKS.len()).then_some(()))
    })
    .await
    .unwrap();
    for pod in stage.all_pods(NAMESPACE).await {
        stage
            .bind(&pod.name_any(), &format!("n{}", index(&pod)))
            .await;
    }
}

/// The node ranks, by worker.
async fn ranks(stage: &Stage) -> Vec<u32> {
    let mut ranks = vec![0; RACKS.len()];
    for pod in stage.all_pods(NAMESPACE).await {
        let document = pod.annotations().get(labels::MEMBERSHIP).unwrap();
        ranks[index(&pod)] = Membership::parse(document).unwrap().unwrap().node_rank;
    }
    ranks
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_one_rack_have_neighbouring_ranks_if_nodes_may_be_read() {
    for (arguments, expected) in [
        (vec![], [0, 2, 1, 3]),
        (vec!["--watch-nodes=false"], [0, 1, 2, 3]),
    ] {
        let stage = Stage::new().await;
        let operator = stage.operator_of(&arguments);
        let mut racked = job(4);
        racked["spec"]["scheduling"] = json!({"topologyKey": KEY, "topologyMode": "Required"});
        stage.create(NAMESPACE, racked).await;
        place(&stage).await;
        let first = stage.all_pods(NAMESPACE).await.remove(0);
        let affinity = first.spec.unwrap().affinity.unwrap().pod_affinity.unwrap();
        let required = affinity.required_during_scheduling_ignored_during_execution;
        assert_eq!(required.unwrap()[0].topology_key, KEY);
        stage.trains(NAMESPACE).await;
        assert_eq!(ranks(&stage).await, expected, "{arguments:?}");
        operator.stop().await;
    }
}
