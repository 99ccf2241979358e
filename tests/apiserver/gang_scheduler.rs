//! Two jobs that need all GPUs each, with a real gang scheduler: the plugin Coscheduling, Volcano,
//! and Kubernetes with its Workload API. The nodes are only objects, and the test plays their
//! kubelets. Without a PodGroup, each job could get some of the GPUs and wait indefinitely for the
//! rest. The same holds for the replicas of several pods of one job.

use std::ops::Range;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use roundhouse_tests::apiserver::Version;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job_of_large_replicas};
use crate::pod_groups::{Scheduler, coscheduling, group_follows_job, kubernetes, volcano};

pub(crate) const GPUS: usize = 8;
/// Two gangs can block each other. Coscheduling then tries again every 30 s, and on a busy machine
/// one of three attempts fails.
const GANG_WAITS_AT_MOST: Duration = Duration::from_mins(8);
const NAMESPACES: [&str; 2] = [NAMESPACE, "other"];

/// Starts a kube-scheduler with the plugin Coscheduling.
fn start_coscheduling(env: &Environment) {
    let only = json!([{"name": "Coscheduling"}]);
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": false},
        "clientConnection": {"kubeconfig": env.server.kubeconfig("test").unwrap()},
        "profiles": [{
            "schedulerName": "scheduler-plugins-scheduler",
            "plugins": {
                "multiPoint": {"enabled": only},
                "queueSort": {"enabled": only, "disabled": [{"name": "*"}]},
            },
        }],
    });
    let path = env.directory.path().join("scheduler.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let arguments = [
        &*format!("--config={}", path.display()),
        "--secure-port=0",
        // The plugin gets no event when a pod terminates. By default, a rejected group waits for 5
        // minutes.
        "--pod-max-in-unschedulable-pods-duration=1s",
    ];
    env.server.run("coscheduling", &arguments).unwrap();
}

/// Starts Volcano's scheduler with the plugins that decide by PodGroup and by free resources.
fn start_volcano(env: &Environment) {
    let config = json!({
        "actions": "enqueue, allocate, backfill",
        "tiers": [
            {"plugins": [{"name": "priority"}, {"name": "gang"}, {"name": "conformance"}]},
            {"plugins": [{"name": "predicates"}, {"name": "proportion"}, {"name": "nodeorder"}]},
        ],
    });
    let kubeconfig = env.server.kubeconfig("test").unwrap();
    let path = env.directory.path().join("volcano.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    let arguments = [
        &*format!("--kubeconfig={}", kubeconfig.display()),
        &*format!("--scheduler-conf={}", path.display()),
        "--leader-elect=false",
        "--listen-address=127.0.0.1:0",
    ];
    env.server.run("volcano", &arguments).unwrap();
}

/// Opens the default queue, as Volcano's controllers do. The scheduler creates the queue but uses
/// it only when it is open.
async fn open_queue(env: &Environment) {
    let queue = ApiResource {
        group: "scheduling.volcano.sh".to_owned(),
        version: "v1beta1".to_owned(),
        api_version: "scheduling.volcano.sh/v1beta1".to_owned(),
        kind: "Queue".to_owned(),
        plural: "queues".to_owned(),
    };
    let queues: Api<DynamicObject> = Api::all_with(env.client.clone(), &queue);
    let parameters = PatchParams::default();
    let open = Patch::Merge(json!({"status": {"state": "Open"}}));
    until("the scheduler has created its queue", TIMEOUT, || async {
        let opened = queues.patch_status("default", &parameters, &open);
        Ok(opened.await.ok())
    })
    .await
    .unwrap();
}

/// Starts the scheduler of Kubernetes, and the controller that removes the finalizer of a PodGroup
/// when its pods have terminated.
fn start_kubernetes(env: &Environment, version: Version) {
    let kubeconfig = env.server.kubeconfig("test").unwrap();
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let common = [
        &*kubeconfig,
        "--leader-elect=false",
        "--secure-port=0",
        "--feature-gates=GenericWorkload=true",
    ];
    let scheduler = version.program("kube-scheduler");
    env.server.run(&scheduler, &common).unwrap();
    let controllers = version.program("kube-controller-manager");
    let only = "--controllers=podgroup-protection-controller";
    let arguments = [&common[..], &[only]].concat();
    env.server.run(&controllers, &arguments).unwrap();
}

/// Creates the nodes `n0` to `n7` with one GPU each.
pub(crate) async fn create_nodes(env: &Environment) {
    create_nodes_of(env, 0..GPUS).await;
}

async fn create_nodes_of(env: &Environment, numbers: Range<usize>) {
    let nodes: Api<Node> = Api::all(env.client.clone());
    for at in numbers {
        let name = format!("n{at}");
        let room = json!({"nvidia.com/gpu": "1", "cpu": "8", "memory": "64Gi", "pods": "110"});
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let labels = json!({"kubernetes.io/arch": "amd64"});
        let node = json!({"metadata": {"name": name, "labels": labels}});
        let node = serde_json::from_value(node).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let parameters = PatchParams::default();
        // A new node has a taint that the node controller would remove, which does not run here.
        let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
        nodes.patch(&name, &parameters, &untainted).await.unwrap();
        let status =
            json!({"status": {"capacity": room, "allocatable": room, "conditions": ready}});
        let status = Patch::Merge(status);
        nodes
            .patch_status(&name, &parameters, &status)
            .await
            .unwrap();
    }
}

/// The number of GPUs that the job of a namespace holds.
async fn num_held(env: &Environment, namespace: &str) -> usize {
    let holds = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        let is_placed = pod.spec.as_ref().is_some_and(|it| it.node_name.is_some());
        is_placed && phase != Some("Succeeded")
    };
    env.all_pods(namespace).await.iter().filter(holds).count()
}

/// Waits until worker 0 has a node and its pod is not `other_than`.
async fn until_placed(pods: &Api<Pod>, other_than: Option<&Pod>) -> Pod {
    let found = until("the worker has a node", TIMEOUT, || async {
        let mut all = pods.list(&ListParams::default()).await?.items;
        let before = other_than.and_then(ResourceExt::uid);
        all.retain(|pod| pod.name_any().starts_with("digits-worker-0-") && pod.uid() != before);
        let has_node = |pod: &Pod| pod.spec.as_ref().is_some_and(|it| it.node_name.is_some());
        Ok(all.into_iter().find(has_node))
    });
    found.await.unwrap()
}

/// Waits until one of these jobs holds all GPUs. Meanwhile the others must not hold any.
async fn winner<'a>(env: &Environment, waiting: &[&'a str]) -> &'a str {
    let found = until("one job has all GPUs", GANG_WAITS_AT_MOST, || async {
        let mut holders = Vec::new();
        for namespace in waiting {
            let number = num_held(env, namespace).await;
            holders.extend((number > 0).then_some((*namespace, number)));
        }
        assert!(holders.len() < 2, "several jobs hold GPUs: {holders:?}");
        let first = holders.first().filter(|(_, number)| *number == GPUS);
        Ok(first.map(|(namespace, _)| *namespace))
    });
    found.await.unwrap()
}

/// Gives each pod of a job one GPU.
fn with_gpus(job: &mut Value) {
    let limits = json!({"limits": {"nvidia.com/gpu": "1"}});
    let containers = json!([{"name": "trainer", "resources": limits}]);
    job["spec"]["workers"]["template"] = json!({"spec": {"containers": containers}});
}

/// Checks that replicas of two pods hold nodes only if they are whole: of five nodes, two replicas
/// hold four. With a sixth node, the third replica gets its nodes, too, and replacements of single
/// pods get theirs.
async fn only_whole_replicas_hold_nodes(env: Environment, scheduler: Scheduler) {
    let operator = env.operator(None);
    let mut job = job_of_large_replicas(3);
    job["spec"]["workers"]["minReplicas"] = json!(1);
    job["spec"]["scheduling"] = json!({"gang": scheduler.gang});
    with_gpus(&mut job);
    env.create(NAMESPACE, job).await;
    let placed = |number| {
        let env = &env;
        until(
            "the replicas have nodes",
            GANG_WAITS_AT_MOST,
            move || async move {
                let num_held = num_held(env, NAMESPACE).await;
                assert!(num_held <= number, "{num_held} pods have nodes");
                Ok((num_held == number).then_some(()))
            },
        )
    };
    placed(4).await.unwrap();
    // The operator creates the pods of all replicas, and the scheduler tries to place them.
    until("all pods exist", TIMEOUT, || async {
        Ok((env.all_pods(NAMESPACE).await.len() == 6).then_some(()))
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(num_held(&env, NAMESPACE).await, 4);
    let mut minimums = Vec::new();
    for name in ["digits", "digits-gang-1", "digits-gang-2"] {
        let group = scheduler
            .groups_in(&env, NAMESPACE)
            .get(name)
            .await
            .unwrap();
        minimums.push(scheduler.minimum_of(&group));
    }
    assert_eq!(minimums, [Some(json!(2)), Some(json!(2)), Some(json!(2))]);
    create_nodes_of(&env, 5..6).await;
    placed(6).await.unwrap();
    let now = DeleteParams::default().grace_period(0);
    for lost in ["digits-worker-0-0", "digits-worker-3-0"] {
        env.pods(NAMESPACE).delete(lost, &now).await.unwrap();
    }
    placed(6).await.unwrap();
    operator.stop().await;
}

/// Checks that two jobs that need all GPUs run one after the other.
async fn competing_gangs_run_in_turn(env: Environment, scheduler: Scheduler) {
    let operator = env.operator(None);
    for namespace in NAMESPACES {
        let mut job = scheduler.job(8);
        with_gpus(&mut job);
        env.create(namespace, job).await;
    }
    let first = winner(&env, &NAMESPACES).await;
    env.run_to_completion(first).await;
    let mut others = NAMESPACES.into_iter().filter(|it| *it != first);
    let second = winner(&env, &[others.next().unwrap()]).await;
    env.run_to_completion(second).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the scheduler waits for half a minute: make test-long"]
async fn coscheduling_runs_competing_gangs_in_turn() {
    let env = Environment::new().await;
    coscheduling().install(&env).await;
    create_nodes(&env).await;
    start_coscheduling(&env);
    competing_gangs_run_in_turn(env, coscheduling()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the scheduler waits for half a minute: make test-long"]
async fn coscheduling_places_whole_replicas() {
    let env = Environment::new().await;
    coscheduling().install(&env).await;
    create_nodes_of(&env, 0..5).await;
    start_coscheduling(&env);
    only_whole_replicas_hold_nodes(env, coscheduling()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Volcano's scheduler: make test-long builds it"]
async fn volcano_places_whole_replicas() {
    let env = Environment::new().await;
    volcano().install(&env).await;
    create_nodes_of(&env, 0..5).await;
    start_volcano(&env);
    open_queue(&env).await;
    only_whole_replicas_hold_nodes(env, volcano()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kubernetes 1.37: make test-long builds it"]
async fn kubernetes_places_whole_replicas() {
    let version = Version::WithGroups;
    let env = Environment::with_version(version).await;
    create_nodes_of(&env, 0..5).await;
    start_kubernetes(&env, version);
    only_whole_replicas_hold_nodes(env, kubernetes()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Volcano's scheduler: make test-long builds it"]
async fn volcano_runs_competing_gangs_in_turn() {
    let env = Environment::new().await;
    volcano().install(&env).await;
    create_nodes(&env).await;
    start_volcano(&env);
    open_queue(&env).await;
    competing_gangs_run_in_turn(env, volcano()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kubernetes 1.37: make test-long builds it"]
async fn kubernetes_runs_competing_gangs_in_turn() {
    let version = Version::WithGroups;
    let env = Environment::with_version(version).await;
    create_nodes(&env).await;
    start_kubernetes(&env, version);
    competing_gangs_run_in_turn(env, kubernetes()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kubernetes 1.37: make test-long builds it"]
async fn kubernetes_pod_group_follows_the_job() {
    let version = Version::WithGroups;
    let env = Environment::with_version(version).await;
    create_nodes(&env).await;
    start_kubernetes(&env, version);
    let pods = env.pods(NAMESPACE);
    // Kubernetes keeps a deleted PodGroup while it has pods, and still places new pods of it.
    group_follows_job(env, kubernetes(), |groups| async move {
        let first = until_placed(&pods, None).await;
        let now = DeleteParams::default().grace_period(0);
        groups.delete("digits", &now).await.unwrap();
        pods.delete(&first.name_any(), &now).await.unwrap();
        until_placed(&pods, Some(&first)).await;
        let group = groups.get("digits").await.unwrap();
        assert!(group.metadata.deletion_timestamp.is_some());
    })
    .await;
}
