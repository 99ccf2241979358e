//! Jobs in a queue of the real Kueue. Kueue counts only the requests of pods, so no nodes are
//! needed. The test plays the kubelets of the pods that Kueue admits.

use kube::ResourceExt;
use kube::api::{Api, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::core::discovery::ApiResource;
use roundhouse_api::ConditionType;
use roundhouse_contract::termination::Reason;
use roundhouse_tests::cluster::until;
use roundhouse_tests::peers::KUEUE;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

mod suspend;

const OTHER: &str = "other";
/// GPUs of the quota, and of each job.
const GPUS: u32 = 4;

/// An environment with Kueue and one quota for both namespaces. A job of the class `urgent`
/// preempts others. The nodes of the quota have these labels.
async fn with_kueue(node_labels: Value) -> Environment {
    let env = Environment::new().await;
    let client = env.client.clone();
    KUEUE.install(&env.server, &client).await.unwrap();
    let priority = |name: &str, value: u32| json!({"kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value});
    let quota = json!({"name": "nvidia.com/gpu", "nominalQuota": GPUS});
    let groups = json!([{
        "coveredResources": ["nvidia.com/gpu"],
        "flavors": [{"name": "gpus", "resources": [quota]}],
    }]);
    let preemption = json!({"withinClusterQueue": "LowerPriority"});
    apply(
        &env,
        None,
        json!({"kind": "ResourceFlavor", "metadata": {"name": "gpus"}, "spec": {"nodeLabels": node_labels}}),
    )
    .await;
    apply(&env, None, priority("usual", 1)).await;
    apply(&env, None, priority("urgent", 2)).await;
    let spec = json!({"namespaceSelector": {}, "resourceGroups": groups, "preemption": preemption});
    apply(
        &env,
        None,
        json!({"kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": spec}),
    )
    .await;
    for namespace in [NAMESPACE, OTHER] {
        let metadata = json!({"name": "research", "namespace": namespace});
        let queue =
            json!({"kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": "all"}});
        apply(&env, Some(namespace), queue).await;
    }
    env
}

async fn apply(env: &Environment, namespace: Option<&str>, mut object: Value) {
    let kind = object["kind"].as_str().unwrap();
    let kind = GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind);
    object["apiVersion"] = json!(kind.api_version());
    let resource = match kind.kind.as_str() {
        // The plural of this kind is irregular.
        "WorkloadPriorityClass" => {
            ApiResource::from_gvk_with_plural(&kind, "workloadpriorityclasses")
        }
        _ => ApiResource::from_gvk(&kind),
    };
    let client = env.client.clone();
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    let parameters = PatchParams::apply("test");
    // Repeated until the kind is served and its webhook is ready.
    until(&name, TIMEOUT, || async {
        let applied = api.patch(&name, &parameters, &Patch::Apply(&object)).await;
        Ok(applied.ok().map(drop))
    })
    .await
    .unwrap();
}

/// A job as in the guide for queues, which needs the whole quota.
fn queued(class: &str) -> Value {
    let limits = json!({"limits": {"nvidia.com/gpu": "1"}});
    let mut job = job(GPUS);
    job["spec"]["workers"]["template"] = json!({
        "metadata": {
            "labels": {
                "kueue.x-k8s.io/queue-name": "research", "kueue.x-k8s.io/pod-group-name": "digits",
                "kueue.x-k8s.io/priority-class": class,
            },
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": GPUS.to_string()},
        },
        "spec": {"containers": [{"name": "trainer", "resources": limits}]},
    });
    job
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kueue: make test-long"]
async fn job_waits_in_kueue_until_another_ends() {
    let env = with_kueue(json!({})).await;
    let operator = env.operator(None);
    env.create(NAMESPACE, queued("usual")).await;
    env.run_until_training(NAMESPACE).await;
    env.create(OTHER, queued("usual")).await;
    env.until_state(OTHER, "SchedulingGated").await;
    env.run_to_completion(NAMESPACE).await;
    env.run_to_completion(OTHER).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kueue: make test-long"]
async fn preempted_job_waits_and_continues() {
    let env = with_kueue(json!({})).await;
    let operator = env.operator(None);
    env.create(NAMESPACE, queued("usual")).await;
    env.run_until_training(NAMESPACE).await;
    env.create(OTHER, queued("urgent")).await;
    env.until_state(NAMESPACE, "SchedulingGated").await;
    env.run_to_completion(OTHER).await;
    env.run_until_training(NAMESPACE).await;
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0);
    env.run_to_completion(NAMESPACE).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kueue: make test-long"]
async fn failed_job_frees_its_kueue_quota() {
    let env = with_kueue(json!({})).await;
    let operator = env.operator(None);
    env.create(NAMESPACE, queued("usual")).await;
    env.run_until_training(NAMESPACE).await;
    env.create(OTHER, queued("usual")).await;
    env.until_state(OTHER, "SchedulingGated").await;
    until("the job fails", TIMEOUT, || async {
        let end = Some((64, Reason::ConfigInvalid));
        env.run_kubelet(NAMESPACE, end).await;
        let status = env.job(NAMESPACE).await.status.unwrap();
        Ok(status.is_true(ConditionType::Failed).then_some(()))
    })
    .await
    .unwrap();
    until(
        "its pods have failed, and the other job trains",
        TIMEOUT,
        || async {
            let pods = env.pods(NAMESPACE);
            for pod in pods.list(&ListParams::default()).await? {
                let failed = Patch::Merge(json!({"status": {"phase": "Failed"}}));
                // Ignored: the pod may be gone already.
                let _ = pods
                    .patch_status(&pod.name_any(), &PatchParams::default(), &failed)
                    .await;
            }
            env.run_kubelet(OTHER, None).await;
            let status = env.job(OTHER).await.status.unwrap_or_default();
            Ok(status.is_true(ConditionType::Running).then_some(()))
        },
    )
    .await
    .unwrap();
    operator.stop().await;
}
