//! The queries of the dashboards and the alerts with a real Prometheus. It scrapes the operator, a
//! job that scales up, saves and loses a worker, and a script that reports a faulty GPU. The data
//! of the dashboards are saved in the directory `ROUNDHOUSE_PICTURES`, from which `make generate`
//! draws them.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use roundhouse_api::{ConditionType, TrainingJobStatus};
use roundhouse_tests::cluster::{DEADLINE, TestNamespace, until};
use roundhouse_tests::manifests::{self, repository};
use roundhouse_tests::prometheus::Prometheus;
use roundhouse_tests::{nodes, processes};
use rustix::process::Signal;
use serde_json::{Value, json};

const SPACE: &str = "e2e-monitoring";
const JOB: &str = "gpt2-romeo";
const SCRIPT: &str = "script";

/// Makes the example's model smaller and its training endless, and adds checkpoints, and local
/// copies, also in a spare.
fn adapt(job: &mut Value) {
    let shared = nodes::shared_directory(SPACE).unwrap();
    let spec = &mut job["spec"];
    spec["workers"]["replicas"] = json!(1);
    spec["workers"]["spares"] = json!(1);
    spec["workers"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"limits": {"cpu": "500m"}});
    spec["checkpoint"] = json!({
        "volume": {"hostPath": {"path": shared}},
        "everySteps": 50,
        "local": {"everySteps": 10, "sizeLimit": "64Mi", "peerCopies": 1},
    });
    let trainer = &mut spec["trainer"];
    for (size, value) in [("layers", 1), ("heads", 2), ("width", 32)] {
        trainer["model"][size] = json!(value);
    }
    trainer["epochs"] = json!(100_000);
    trainer["peakFlops"] = json!(1e10);
}

/// A script on a GPU. After a second it exits with the code of a faulty device, and continues on
/// another node.
fn script() -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": SCRIPT},
        "spec": {
            "elastic": {"mode": "Restart", "leaveGraceSeconds": 5},
            "workers": {"replicas": 1, "template": {"spec": {"containers": [{
                "name": "trainer",
                "image": "localhost/counting-script:dev",
                "imagePullPolicy": "Never",
                "command": ["/usr/local/bin/counting-script"],
                "args": ["--steps=100000", "--step-millis=50", "--directory=/state", "--fault=0:20:77"],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
                "volumeMounts": [{"name": "state", "mountPath": "/state"}],
            }], "volumes": [{"name": "state", "emptyDir": {}}]}}},
        },
    })
}

/// Gives each node two GPUs, as a device plugin would.
async fn add_gpus(space: &TestNamespace) {
    let all: Api<Node> = Api::all(space.client.clone());
    let gpus = json!({"nvidia.com/gpu": "2"});
    let status = json!({"status": {"capacity": gpus, "allocatable": gpus}});
    for node in all.list(&kube::api::ListParams::default()).await.unwrap() {
        let patch = Patch::Merge(&status);
        all.patch_status(&node.name_any(), &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
}

async fn wait_for(
    space: &TestNamespace,
    job: &str,
    what: &str,
    is_reached: impl Fn(&TrainingJobStatus) -> bool,
) {
    let reached = until(what, DEADLINE, || async {
        let status = space.jobs().get(job).await?.status.unwrap_or_default();
        anyhow::ensure!(!status.is_terminal(), "{job} ended");
        Ok(is_reached(&status).then_some(()))
    });
    or_dump(space, reached.await).await;
}

/// Unwraps the result of a wait. On an error it prints the state of the namespace first.
async fn or_dump<T>(space: &TestNamespace, awaited: anyhow::Result<T>) -> T {
    if awaited.is_err() {
        println!("{}", space.dump().await);
    }
    awaited.unwrap()
}

fn trains_with(status: &TrainingJobStatus, workers: u32) -> bool {
    let nodes = status.membership.as_ref().map_or(0, |newest| newest.nodes);
    status.is_true(ConditionType::Running) && nodes == workers
}

#[tokio::test(flavor = "multi_thread")]
async fn every_dashboard_and_alert_query_has_data() {
    let space = TestNamespace::create(SPACE, true).await.unwrap();
    let recorded =
        std::fs::read_to_string(repository().join("tests/monitoring/gpu-node.prom")).unwrap();
    let recorded = recorded
        .replace("@NAMESPACE@", SPACE)
        .replace("@JOB@", JOB)
        .replace("@POD0@", &format!("{JOB}-worker-0-0"))
        .replace("@POD1@", &format!("{JOB}-worker-1-0"));
    let prometheus = Prometheus::start(recorded).await.unwrap();

    add_gpus(&space).await;
    space.create_object(&script()).await.unwrap();
    for mut object in manifests::read("examples/gpt2-romeo.yaml").unwrap() {
        if object["kind"] == "TrainingJob" {
            adapt(&mut object);
        }
        space.create_object(&object).await.unwrap();
    }
    wait_for(&space, JOB, "the job trains", |status| {
        trains_with(status, 1)
    })
    .await;
    let scale = Patch::Merge(json!({"spec": {"replicas": 2}}));
    let jobs = space.jobs();
    jobs.patch_scale(JOB, &PatchParams::default(), &scale)
        .await
        .unwrap();
    wait_for(&space, JOB, "the job has scaled up", |status| {
        trains_with(status, 2)
    })
    .await;
    wait_for(&space, JOB, "the job has saved a checkpoint", |status| {
        status
            .checkpoint
            .as_ref()
            .is_some_and(|newest| newest.step.is_some())
    })
    .await;
    let rank = nodes::process(SPACE, &format!("{JOB}-worker-1-0")).unwrap();
    assert!(processes::send(rank, Signal::KILL));
    wait_for(&space, JOB, "the job has recovered", |status| {
        status.incidents.total == 1 && trains_with(status, 2)
    })
    .await;
    wait_for(
        &space,
        SCRIPT,
        "the script runs on another node",
        |status| !status.avoid_nodes.is_empty() && trains_with(status, 1),
    )
    .await;

    let record = std::env::var_os("ROUNDHOUSE_PICTURES").map(|it| repository().join(it));
    let report = prometheus.evaluate(SPACE, &[JOB, SCRIPT], DEADLINE, record.as_deref());
    println!("{}", or_dump(&space, report).await);
    space.delete().await.unwrap();
}
