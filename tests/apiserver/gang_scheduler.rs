//! Two jobs that need all GPUs each, before a gang scheduler: the plugin Coscheduling, Volcano's, and that of Kubernetes with its
//! Workload API. Nodes are objects, and the test plays their kubelets. Without a group each job can get a part of the GPUs and
//! wait for the other for ever.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use roundhouse_tests::apiserver::Version;
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT};
use crate::pod_groups::{Scheduler, coscheduling, group_follows_job, kubernetes, volcano};

pub(crate) const GPUS: usize = 8;
/// Two gangs can block each other. Coscheduling retries every 30 s, and on a busy machine one of three retries fails.
const GANG_WAITS_AT_MOST: Duration = Duration::from_mins(8);
const NAMESPACES: [&str; 2] = [NAMESPACE, "other"];

/// Starts a kube-scheduler with the plugin Coscheduling beside the API server.
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
        // The plugin is not told that a pod has ended: by default a group that it rejected waits for 5 minutes.
        "--pod-max-in-unschedulable-pods-duration=1s",
    ];
    env.server.run("coscheduling", &arguments).unwrap();
}

/// Starts Volcano's scheduler beside the API server, with the plugins that decide by groups and by room.
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

/// The part of Volcano's controllers: the scheduler makes the queue, and uses it when it is open.
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
    until("the scheduler has made its queue", TIMEOUT, || async {
        let opened = queues.patch_status("default", &parameters, &open);
        Ok(opened.await.ok())
    })
    .await
    .unwrap();
}

/// Starts the scheduler of Kubernetes beside the API server, and the controller that lets a PodGroup go when its pods have ended.
fn start_kubernetes(env: &Environment, version: Version) {
    let kubeconfig = env.server.kubeconfig("test").unwrap();
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let common = [
        &*kubeconfig,
        "--leader-elect=false",
        "--secure-port=0",
        "--feature-gates=GenericWorkload=true",
    ];
    let scheduler = version.program_of("kube-scheduler");
    env.server.run(&scheduler, &common).unwrap();
    let controllers = version.program_of("kube-controller-manager");
    let only = "--controllers=podgroup-protection-controller";
    let arguments = [&common[..], &[only]].concat();
    env.server.run(&controllers, &arguments).unwrap();
}

/// Nodes `n0` to `n7` with one GPU each.
pub(crate) async fn make_nodes(env: &Environment) {
    let nodes: Api<Node> = Api::all(env.client.clone());
    for at in 0..GPUS {
        let name = format!("n{at}");
        let room = json!({"nvidia.com/gpu": "1", "cpu": "8", "memory": "64Gi", "pods": "110"});
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let labels = json!({"kubernetes.io/arch": "amd64"});
        let node = json!({"metadata": {"name": name, "labels": labels}});
        let node = serde_json::from_value(node).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let parameters = PatchParams::default();
        // A new node is tainted until its controller has seen it, which does not run here.
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

/// GPUs that the job of a namespace holds.
async fn held(env: &Environment, namespace: &str) -> usize {
    let holds = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        let is_placed = pod.spec.as_ref().is_some_and(|it| it.node_name.is_some());
        is_placed && phase != Some("Succeeded")
    };
    env.all_pods(namespace).await.iter().filter(holds).count()
}

/// Waits until the first worker has a node, with another pod than this one.
async fn placed(pods: &Api<Pod>, other_than: Option<&Pod>) -> Pod {
    let found = until("the worker has a node", TIMEOUT, || async {
        let mut all = pods.list(&ListParams::default()).await?.items;
        let before = other_than.and_then(ResourceExt::uid);
        all.retain(|pod| pod.name_any().starts_with("digits-worker-0-") && pod.uid() != before);
        let has_node = |pod: &Pod| pod.spec.as_ref().is_some_and(|it| it.node_name.is_some());
        Ok(all.into_iter().find(has_node))
    });
    found.await.unwrap()
}

/// Waits until one of these jobs has all GPUs. The others never have one.
async fn winner<'a>(env: &Environment, waiting: &[&'a str]) -> &'a str {
    let found = until("one job has all GPUs", GANG_WAITS_AT_MOST, || async {
        let mut holders = Vec::new();
        for namespace in waiting {
            let number = held(env, namespace).await;
            holders.extend((number > 0).then_some((*namespace, number)));
        }
        assert!(holders.len() < 2, "each job holds a part: {holders:?}");
        let first = holders.first().filter(|(_, number)| *number == GPUS);
        Ok(first.map(|(namespace, _)| *namespace))
    });
    found.await.unwrap()
}

/// Of two jobs that need all GPUs one trains to its end, and then the other.
async fn one_trains_and_then_the_other(env: Environment, scheduler: Scheduler) {
    let operator = env.operator(None);
    for namespace in NAMESPACES {
        let mut job = scheduler.job(8);
        let limits = json!({"limits": {"nvidia.com/gpu": "1"}});
        let containers = json!([{"name": "trainer", "resources": limits}]);
        job["spec"]["workers"]["template"] = json!({"spec": {"containers": containers}});
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
    make_nodes(&env).await;
    start_coscheduling(&env);
    one_trains_and_then_the_other(env, coscheduling()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Volcano's scheduler: make test-long builds it"]
async fn volcano_runs_competing_gangs_in_turn() {
    let env = Environment::new().await;
    volcano().install(&env).await;
    make_nodes(&env).await;
    start_volcano(&env);
    open_queue(&env).await;
    one_trains_and_then_the_other(env, volcano()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kubernetes 1.37: make test-long builds it"]
async fn kubernetes_runs_competing_gangs_in_turn() {
    let version = Version::WithGroups;
    let env = Environment::with_version(version).await;
    make_nodes(&env).await;
    start_kubernetes(&env, version);
    one_trains_and_then_the_other(env, kubernetes()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kubernetes 1.37: make test-long builds it"]
async fn kubernetes_pod_group_follows_the_job() {
    let version = Version::WithGroups;
    let env = Environment::with_version(version).await;
    make_nodes(&env).await;
    start_kubernetes(&env, version);
    let pods = env.pods(NAMESPACE);
    // Kubernetes keeps it as long as it has pods, and places those that are made meanwhile.
    group_follows_job(env, kubernetes(), |groups| async move {
        let first = placed(&pods, None).await;
        let now = DeleteParams::default().grace_period(0);
        groups.delete("digits", &now).await.unwrap();
        pods.delete(&first.name_any(), &now).await.unwrap();
        placed(&pods, Some(&first)).await;
        let group = groups.get("digits").await.unwrap();
        assert!(group.metadata.deletion_timestamp.is_some());
    })
    .await;
}
