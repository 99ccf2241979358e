//! Workers on nodes in two racks: their node ranks, and the racks that the scheduler of Kubernetes
//! chooses. In the test of the ranks, the test plays the scheduler.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use roundhouse_contract::{Membership, labels};
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};
use crate::gang_scheduler::{GPUS, create_nodes};

const KEY: &str = "example.com/rack";
/// The rack of each worker's node.
const RACKS: [&str; 4] = ["b", "a", "b", "a"];

fn index(pod: &Pod) -> usize {
    pod.labels()[labels::WORKER_INDEX].parse().unwrap()
}

/// Creates a node per worker in the racks of [`RACKS`], and binds each worker to its node.
async fn place(env: &Environment) {
    let nodes: Api<Node> = Api::all(env.client.clone());
    for (at, rack) in RACKS.iter().enumerate() {
        let node = json!({"metadata": {"name": format!("n{at}"), "labels": {KEY: rack}}});
        let node = serde_json::from_value(node).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }
    until("the pods exist", TIMEOUT, || async {
        Ok((env.all_pods(NAMESPACE).await.len() == RACKS.len()).then_some(()))
    })
    .await
    .unwrap();
    for pod in env.all_pods(NAMESPACE).await {
        env.bind(&pod.name_any(), &format!("n{}", index(&pod)))
            .await;
    }
}

/// The node rank of each worker.
async fn ranks(env: &Environment) -> Vec<u32> {
    let mut ranks = vec![0; RACKS.len()];
    for pod in env.all_pods(NAMESPACE).await {
        let document = pod.annotations().get(labels::MEMBERSHIP).unwrap();
        ranks[index(&pod)] = Membership::parse(document).unwrap().unwrap().node_rank;
    }
    ranks
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_one_rack_have_adjacent_ranks() {
    for (arguments, expected) in [
        (vec![], [0, 2, 1, 3]),
        (vec!["--watch-nodes=false"], [0, 1, 2, 3]),
    ] {
        let env = Environment::new().await;
        let operator = env.operator_with_arguments(&arguments);
        let mut racked = job(4);
        racked["spec"]["scheduling"] = json!({"topologyKey": KEY, "topologyMode": "Required"});
        env.create(NAMESPACE, racked).await;
        place(&env).await;
        let first = env.all_pods(NAMESPACE).await.remove(0);
        let affinity = first.spec.unwrap().affinity.unwrap().pod_affinity.unwrap();
        let required = affinity.required_during_scheduling_ignored_during_execution;
        assert_eq!(required.unwrap()[0].topology_key, KEY);
        env.run_until_training(NAMESPACE).await;
        assert_eq!(ranks(&env).await, expected, "{arguments:?}");
        operator.stop().await;
    }
}

/// The racks of a job's pods, or `None` until all pods have a node.
async fn racks(
    env: &Environment,
    namespace: &str,
    workers: u32,
) -> anyhow::Result<Option<BTreeSet<String>>> {
    let nodes: Api<Node> = Api::all(env.client.clone());
    let (mut racks, mut num_placed) = (BTreeSet::new(), 0);
    for pod in env.all_pods(namespace).await {
        if let Some(node) = pod.spec.unwrap().node_name {
            racks.insert(nodes.get(&node).await?.labels()[KEY].clone());
            num_placed += 1;
        }
    }
    Ok((num_placed == workers).then_some(racks))
}

/// Creates nodes in two racks and starts the scheduler of Kubernetes.
async fn start_scheduler(env: &Environment) {
    create_nodes(env).await;
    let nodes: Api<Node> = Api::all(env.client.clone());
    for at in 0..GPUS {
        let labels = Patch::Merge(json!({"metadata": {"labels": {KEY: format!("r{}", at % 2)}}}));
        let (name, parameters) = (format!("n{at}"), PatchParams::default());
        nodes.patch(&name, &parameters, &labels).await.unwrap();
    }
    let kubeconfig = env.server.kubeconfig("test").unwrap();
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let arguments = [&*kubeconfig, "--leader-elect=false", "--secure-port=0"];
    env.server.run("kube-scheduler", &arguments).unwrap();
}

/// A job with a topology and one GPU per worker.
fn racked(workers: u32, mode: &str) -> Value {
    let mut racked = job(workers);
    racked["spec"]["scheduling"] = json!({"topologyKey": KEY, "topologyMode": mode});
    let limits = json!({"limits": {"nvidia.com/gpu": "1"}});
    let containers = json!([{"name": "trainer", "resources": limits}]);
    racked["spec"]["workers"]["template"] = json!({"spec": {"containers": containers}});
    racked
}

/// Lets the nodes of a rack fail. As the node lifecycle controller does, it updates the status of
/// the nodes and their pods, and deletes the pods.
async fn fail_rack(env: &Environment, rack: &str) {
    let nodes: Api<Node> = Api::all(env.client.clone());
    let parameters = PatchParams::default();
    let of_rack = ListParams::default().labels(&format!("{KEY}={rack}"));
    let mut names = BTreeSet::new();
    for node in nodes.list(&of_rack).await.unwrap().items {
        let name = node.name_any();
        let taint = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"});
        let tainted = Patch::Merge(json!({"spec": {"taints": [taint]}}));
        nodes.patch(&name, &parameters, &tainted).await.unwrap();
        let unknown = json!([{"type": "Ready", "status": "Unknown"}]);
        let status = Patch::Merge(json!({"status": {"conditions": unknown}}));
        let patched = nodes.patch_status(&name, &parameters, &status).await;
        patched.unwrap();
        names.insert(name);
    }
    let conditions = json!([
        {"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]);
    let lost = Patch::Merge(json!({"status": {"conditions": conditions}}));
    for pod in env.all_pods(NAMESPACE).await {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        if node.is_some_and(|node| names.contains(node)) {
            let pods = env.pods(NAMESPACE);
            let patched = pods.patch_status(&pod.name_any(), &parameters, &lost).await;
            patched.unwrap();
            let evicted = pods.delete(&pod.name_any(), &DeleteParams::default()).await;
            evicted.unwrap();
        }
    }
}

/// Kubernetes keeps the pods of failed nodes. Their affinity must not attract the new pods to the
/// failed rack.
#[tokio::test(flavor = "multi_thread")]
async fn job_with_required_topology_leaves_a_failed_rack() {
    let env = Environment::new().await;
    start_scheduler(&env).await;
    let operator = env.operator(None);
    env.create(NAMESPACE, racked(2, "Required")).await;
    let is_placed = || racks(&env, NAMESPACE, 2);
    let before = until("all workers are placed", TIMEOUT, is_placed).await;
    let before = before.unwrap();
    env.run_until_training(NAMESPACE).await;
    fail_rack(&env, before.first().unwrap()).await;
    until("the workers are in the other rack", TIMEOUT, || async {
        let now = racks(&env, NAMESPACE, 4).await?;
        Ok(now.filter(|now| now.len() == 2))
    })
    .await
    .unwrap();
    for pod in env.all_pods(NAMESPACE).await {
        let is_marked = pod.labels().contains_key(labels::LEFT_DOMAIN);
        assert_eq!(is_marked, pod.metadata.deletion_timestamp.is_some());
    }
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_preferred_topology_may_use_two_racks() {
    for mode in ["Required", "Preferred"] {
        let env = Environment::new().await;
        start_scheduler(&env).await;
        let operator = env.operator(None);
        // The first job leaves one free node in its rack, and the second job needs that node.
        for (namespace, mode, workers, expected) in
            [(NAMESPACE, mode, 3, 1), ("other", "Preferred", 5, 2)]
        {
            env.create(namespace, racked(workers, mode)).await;
            let is_placed = || racks(&env, namespace, workers);
            let placed = until("all workers are placed", TIMEOUT, is_placed).await;
            assert_eq!(placed.unwrap().len(), expected, "{mode}");
        }
        operator.stop().await;
    }
}

/// The racks of a job's pods by the replica that their labels name, or `None` until `num` pods have
/// a node.
async fn racks_of_replicas(
    env: &Environment,
    num: usize,
) -> anyhow::Result<Option<BTreeMap<String, Vec<String>>>> {
    let nodes: Api<Node> = Api::all(env.client.clone());
    let mut racks = BTreeMap::<String, Vec<String>>::new();
    for pod in env.all_pods(NAMESPACE).await {
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) {
            let rack = nodes.get(node).await?.labels()[KEY].clone();
            let replica = pod.labels()[labels::REPLICA_INDEX].clone();
            racks.entry(replica).or_default().push(rack);
        }
    }
    Ok((racks.values().map(Vec::len).sum::<usize>() == num).then_some(racks))
}

/// A rack has four nodes with a GPU each. Two replicas of three pods do not fit into one, and each
/// of them fits.
#[tokio::test(flavor = "multi_thread")]
async fn each_replica_of_several_pods_is_in_one_rack() {
    let env = Environment::new().await;
    start_scheduler(&env).await;
    let operator = env.operator(None);
    let mut large = racked(2, "Required");
    large["spec"]["workers"]["podsPerReplica"] = json!(3);
    large["spec"]["trainer"]["parallel"] = json!({"shard": "Zero1"});
    env.create(NAMESPACE, large).await;
    let is_placed = || racks_of_replicas(&env, 6);
    let first = until("all pods are placed", TIMEOUT, is_placed).await;
    let first = first.unwrap();
    assert_eq!(first.len(), 2);
    for racks in first.values() {
        assert!(racks.iter().all(|rack| *rack == racks[0]), "{first:?}");
    }

    let before = env.uids(NAMESPACE).await;
    for pod in ["digits-worker-1-0", "digits-worker-4-0"] {
        let at_once = DeleteParams::default().grace_period(0);
        env.pods(NAMESPACE).delete(pod, &at_once).await.unwrap();
    }
    let returned = until("their successors are placed", TIMEOUT, || async {
        let uids = env.uids(NAMESPACE).await;
        let is_new = uids.iter().filter(|uid| !before.contains(uid)).count() == 2;
        Ok(racks_of_replicas(&env, 6).await?.filter(|_| is_new))
    });
    assert_eq!(returned.await.unwrap(), first);
    operator.stop().await;
}
