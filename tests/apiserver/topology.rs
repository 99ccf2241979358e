//! Workers on nodes in two racks: their node ranks, where the test is the scheduler, and where the scheduler of Kubernetes puts
//! them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use roundhouse_contract::{Membership, labels};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::gang_scheduler::{GPUS, make_nodes};
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

/// The racks of the nodes of a job's pods, when all have one.
async fn racks(
    stage: &Stage,
    namespace: &str,
    workers: u32,
) -> anyhow::Result<Option<BTreeSet<String>>> {
    let nodes: Api<Node> = Api::all(stage.client.clone());
    let (mut racks, mut num_placed) = (BTreeSet::new(), 0);
    for pod in stage.all_pods(namespace).await {
        if let Some(node) = pod.spec.unwrap().node_name {
            racks.insert(nodes.get(&node).await?.labels()[KEY].clone());
            num_placed += 1;
        }
    }
    Ok((num_placed == workers).then_some(racks))
}

/// Nodes in two racks, and the scheduler of Kubernetes.
async fn start_scheduler(stage: &Stage) {
    make_nodes(stage).await;
    let nodes: Api<Node> = Api::all(stage.client.clone());
    for at in 0..GPUS {
        let labels = Patch::Merge(json!({"metadata": {"labels": {KEY: format!("r{}", at % 2)}}}));
        let (name, parameters) = (format!("n{at}"), PatchParams::default());
        nodes.patch(&name, &parameters, &labels).await.unwrap();
    }
    let kubeconfig = stage.server.kubeconfig("test").unwrap();
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let arguments = [&*kubeconfig, "--leader-elect=false", "--secure-port=0"];
    stage.server.run("kube-scheduler", &arguments).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn required_and_preferred_topology_keep_workers_in_one_rack_and_preferred_lets_them_use_two()
{
    for mode in ["Required", "Preferred"] {
        let stage = Stage::new().await;
        start_scheduler(&stage).await;
        let operator = stage.operator(None);
        // The first job leaves one node of a rack, and the second one needs it.
        for (namespace, mode, workers, expected) in
            [(NAMESPACE, mode, 3, 1), ("other", "Preferred", 5, 2)]
        {
            let mut racked = job(workers);
            racked["spec"]["scheduling"] = json!({"topologyKey": KEY, "topologyMode": mode});
            let limits = json!({"limits": {"nvidia.com/gpu": "1"}});
            let containers = json!([{"name": "trainer", "resources": limits}]);
            racked["spec"]["workers"]["template"] = json!({"spec": {"containers": containers}});
            stage.create(namespace, racked).await;
            let is_placed = || racks(&stage, namespace, workers);
            let placed = until("all workers are placed", SOON, is_placed).await;
            assert_eq!(placed.unwrap().len(), expected, "{mode}");
        }
        operator.stop().await;
    }
}
