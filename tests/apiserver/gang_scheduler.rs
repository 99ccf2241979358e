//! Two jobs that need all GPUs each, before the scheduler with the plugin Coscheduling. Nodes are objects, and the test plays
//! their kubelets. Without a group each job can get a part of the GPUs and wait for the other for ever.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use roundhouse_contract::termination::Reason;
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::gang::coscheduling;
use crate::stage::{NAMESPACE, SOON, Stage};

const GPUS: usize = 8;
const NAMESPACES: [&str; 2] = [NAMESPACE, "other"];

/// Starts a kube-scheduler with the plugin Coscheduling beside the API server.
fn start_scheduler(stage: &Stage) {
    let only = json!([{"name": "Coscheduling"}]);
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": false},
        "clientConnection": {"kubeconfig": stage.server.kubeconfig("test").unwrap()},
        "profiles": [{
            "schedulerName": "scheduler-plugins-scheduler",
            "plugins": {
                "multiPoint": {"enabled": only},
                "queueSort": {"enabled": only, "disabled": [{"name": "*"}]},
            },
        }],
    });
    let path = stage.directory.path().join("scheduler.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let arguments = [
        &*format!("--config={}", path.display()),
        "--secure-port=0",
        // The plugin is not told that a pod has ended: by default a group that it rejected waits for 5 minutes.
        "--pod-max-in-unschedulable-pods-duration=1s",
    ];
    stage.server.run("coscheduling", &arguments).unwrap();
}

/// Nodes with one GPU each.
async fn make_nodes(stage: &Stage) {
    let nodes: Api<Node> = Api::all(stage.client.clone());
    for at in 0..GPUS {
        let name = format!("n{at}");
        let room = json!({"nvidia.com/gpu": "1", "cpu": "8", "memory": "64Gi", "pods": "110"});
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
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
async fn held(stage: &Stage, namespace: &str) -> usize {
    let holds = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        let is_placed = pod.spec.as_ref().is_some_and(|it| it.node_name.is_some());
        is_placed && phase != Some("Succeeded")
    };
    stage.all_pods(namespace).await.iter().filter(holds).count()
}

/// Waits until one of these jobs has all GPUs. The others never have one.
async fn winner<'a>(stage: &Stage, waiting: &[&'a str]) -> &'a str {
    let found = until("one job has all GPUs", SOON, || async {
        let mut holders = Vec::new();
        for namespace in waiting {
            let number = held(stage, namespace).await;
            holders.extend((number > 0).then_some((*namespace, number)));
        }
        assert!(holders.len() < 2, "each job holds a part: {holders:?}");
        let first = holders.first().filter(|(_, number)| *number == GPUS);
        Ok(first.map(|(namespace, _)| *namespace))
    });
    found.await.unwrap()
}

/// The job of a namespace trains and ends.
async fn run_to_its_end(stage: &Stage, namespace: &str) {
    stage.trains(namespace).await;
    until("the job ends", SOON, || async {
        stage.kubelet(namespace, Some((0, Reason::Completed))).await;
        let status = stage.job(namespace).await.status.unwrap();
        Ok(status.is_terminal().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the scheduler waits for half a minute: make test-long"]
async fn of_two_jobs_that_need_all_gpus_one_trains_and_then_the_other() {
    let stage = Stage::new().await;
    coscheduling().install(&stage).await;
    make_nodes(&stage).await;
    start_scheduler(&stage);
    let operator = stage.operator(None);
    for namespace in NAMESPACES {
        let mut job = coscheduling().job(8);
        let limits = json!({"limits": {"nvidia.com/gpu": "1"}});
        let containers = json!([{"name": "trainer", "resources": limits}]);
        job["spec"]["workers"]["template"] = json!({"spec": {"containers": containers}});
        stage.create(namespace, job).await;
    }
    let first = winner(&stage, &NAMESPACES).await;
    run_to_its_end(&stage, first).await;
    let mut others = NAMESPACES.into_iter().filter(|it| *it != first);
    let second = winner(&stage, &[others.next().unwrap()]).await;
    run_to_its_end(&stage, second).await;
    operator.stop().await;
}
