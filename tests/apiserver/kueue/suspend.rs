//! Jobs that Kueue suspends and resumes through the controller in integrations/kueue.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::core::discovery::ApiResource;
use roundhouse_api::ConditionType;
use roundhouse_tests::cluster::until;
use roundhouse_tests::manifests::{documents, repository};
use serde_json::{Value, json};

use super::{GPUS, OTHER, with_kueue};
use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

/// How long the test checks that Kueue keeps the quota. Kueue would reassign it within
/// milliseconds.
const HOLD: Duration = Duration::from_secs(4);

/// An environment with Kueue and the controller, which has the permissions of its manifest.
async fn with_controller() -> Environment {
    let env = with_kueue(json!({"accelerator": "h100"})).await;
    let namespaces: Api<Namespace> = Api::all(env.client.clone());
    let own = serde_json::from_value(json!({"metadata": {"name": "kueue-system"}})).unwrap();
    namespaces
        .create(&PostParams::default(), &own)
        .await
        .unwrap();
    for document in documents(&repository().join("integrations/kueue/deploy.yaml")).unwrap() {
        let kind = document["kind"].as_str().unwrap();
        let kind = GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", kind);
        if document["apiVersion"] != json!(kind.api_version()) {
            continue;
        }
        let (client, resource) = (env.client.clone(), ApiResource::from_gvk(&kind));
        let api: Api<DynamicObject> = match document["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let object = serde_json::from_value(document).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }
    let kubeconfig = env.server.kubeconfig("roundhouse-kueue").unwrap();
    let environment = [("KUBECONFIG", kubeconfig.as_path())];
    let arguments = [
        "--health-probe-bind-address=0",
        "--leader-elect",
        "--leader-elect-namespace=kueue-system",
        "--wait-for-pods-ready",
    ];
    env.server
        .run_with("roundhouse-kueue", &arguments, &environment)
        .unwrap();
    env
}

/// A suspended job of the queue, as in the guide. Each worker needs a GPU.
fn queued(workers: u32, class: &str) -> Value {
    let limits = json!({"limits": {"nvidia.com/gpu": "1"}});
    let mut job = job(workers);
    job["metadata"]["labels"] = json!({
        "kueue.x-k8s.io/queue-name": "research", "kueue.x-k8s.io/priority-class": class,
    });
    job["spec"]["suspend"] = json!(true);
    // In a Workload, the API server adds a default to the port.
    let ports = json!([{"containerPort": 8080}]);
    let containers = json!([{"name": "trainer", "resources": limits, "ports": ports}]);
    job["spec"]["workers"]["template"] = json!({"spec": {"containers": containers}});
    job
}

/// The accelerators in the node selectors of the pods of a namespace.
async fn selectors(env: &Environment, namespace: &str) -> Vec<Option<String>> {
    let pods = env.all_pods(namespace).await;
    let selector = |pod: &k8s_openapi::api::core::v1::Pod| {
        let labels = pod.spec.as_ref()?.node_selector.as_ref()?;
        labels.get("accelerator").cloned()
    };
    pods.iter().map(selector).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kueue: make test-long"]
async fn kueue_resumes_a_job_on_nodes_of_its_flavor() {
    let env = with_controller().await;
    let operator = env.operator(None);
    env.create(NAMESPACE, queued(GPUS, "usual")).await;
    env.run_until_training(NAMESPACE).await;
    let on_h100 = vec![Some("h100".to_owned()); GPUS as usize];
    assert_eq!(selectors(&env, NAMESPACE).await, on_h100);
    env.create(OTHER, queued(GPUS, "usual")).await;
    env.until_state(OTHER, "Suspended").await;
    assert!(env.all_pods(OTHER).await.is_empty());
    env.run_to_completion(NAMESPACE).await;
    env.run_to_completion(OTHER).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kueue: make test-long"]
async fn preempted_job_gets_its_own_template_back() {
    let env = with_controller().await;
    let operator = env.operator(None);
    let created = env.create(NAMESPACE, queued(GPUS, "usual")).await;
    env.run_until_training(NAMESPACE).await;
    let pods = env.pods(NAMESPACE);
    let held = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    for pod in env.all_pods(NAMESPACE).await {
        let saves = held(json!(["test/saves-a-checkpoint"]));
        pods.patch(&pod.name_any(), &PatchParams::default(), &saves)
            .await
            .unwrap();
    }
    env.create(OTHER, queued(GPUS, "urgent")).await;
    until("the job is suspended and restored", TIMEOUT, || async {
        let spec = env.job(NAMESPACE).await.spec;
        let is_restored = spec.workers.template == created.spec.workers.template;
        Ok((spec.suspend && is_restored).then_some(()))
    })
    .await
    .unwrap();
    until(
        "the operator has observed the suspension",
        TIMEOUT,
        || async {
            let job = env.job(NAMESPACE).await;
            let status = job.status.unwrap_or_default();
            let is_observed = status.observed_generation == job.metadata.generation;
            Ok((is_observed && status.is_true(ConditionType::Suspended)).then_some(()))
        },
    )
    .await
    .unwrap();
    let end = Instant::now() + HOLD;
    while Instant::now() < end {
        assert!(env.all_pods(OTHER).await.is_empty());
        tokio::time::sleep(HOLD / 20).await;
    }
    for pod in env.all_pods(NAMESPACE).await {
        assert!(pod.metadata.deletion_timestamp.is_some());
        let name = pod.name_any();
        let parameters = PatchParams::default();
        pods.patch(&name, &parameters, &held(json!(null)))
            .await
            .unwrap();
    }
    env.run_to_completion(OTHER).await;
    env.run_until_training(NAMESPACE).await;
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0);
    env.run_to_completion(NAMESPACE).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kueue: make test-long"]
async fn interrupted_stop_restores_the_template() {
    let env = with_controller().await;
    let operator = env.operator(None);
    let created = env.create(NAMESPACE, queued(2, "usual")).await;
    env.run_until_training(NAMESPACE).await;
    // The owner scales the job, and the controller stops between its two updates of a suspension.
    let annotations = json!({"kueue.x-k8s.io/stopping": "true"});
    let spec = json!({"suspend": true, "workers": {"replicas": 1}});
    let first_update =
        Patch::Merge(json!({"metadata": {"annotations": annotations}, "spec": spec}));
    let (jobs, name) = (env.jobs(NAMESPACE), created.name_any());
    jobs.patch(&name, &PatchParams::default(), &first_update)
        .await
        .unwrap();
    until("the job trains with one worker", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let membership = env.job(NAMESPACE).await.status.unwrap().membership;
        Ok(membership
            .is_some_and(|it| it.world_size == 1)
            .then_some(()))
    })
    .await
    .unwrap();
    let kind = GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "Workload");
    let resource = ApiResource::from_gvk(&kind);
    let client = env.client.clone();
    let workloads: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &resource);
    let workloads = workloads.list(&ListParams::default()).await.unwrap().items;
    let [workload] = workloads.as_slice() else {
        panic!("one workload: {workloads:#?}")
    };
    let queued = &workload.data["spec"]["podSets"][0];
    assert_eq!(queued["count"], 1);
    assert_eq!(queued["template"]["spec"]["nodeSelector"], Value::Null);
    assert_eq!(selectors(&env, NAMESPACE).await, [Some("h100".to_owned())]);
    env.run_to_completion(NAMESPACE).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kueue: make test-long"]
async fn kueue_admits_part_of_an_elastic_job() {
    let env = with_controller().await;
    let operator = env.operator(None);
    env.create(NAMESPACE, queued(1, "usual")).await;
    env.run_until_training(NAMESPACE).await;
    let mut elastic = queued(GPUS, "usual");
    elastic["spec"]["workers"]["minReplicas"] = json!(2);
    env.create(OTHER, elastic).await;
    env.run_until_training(OTHER).await;
    let job = env.job(OTHER).await;
    assert_eq!(job.spec.workers.replicas, GPUS - 1);
    assert_eq!(env.all_pods(OTHER).await.len(), GPUS as usize - 1);
    // After a change of the scale, the job queues again.
    let fewer = Patch::Merge(json!({"spec": {"workers": {"replicas": 2}}}));
    let (name, parameters) = (job.name_any(), PatchParams::default());
    let jobs = env.jobs(OTHER);
    jobs.patch(&name, &parameters, &fewer).await.unwrap();
    until("the job trains with two workers", TIMEOUT, || async {
        env.run_kubelet(OTHER, None).await;
        let job = env.job(OTHER).await;
        let membership = job.status.unwrap().membership;
        let has_two = membership.is_some_and(|it| it.world_size == 2);
        Ok((has_two && !job.spec.suspend && job.spec.workers.replicas == 2).then_some(()))
    })
    .await
    .unwrap();
    env.run_to_completion(NAMESPACE).await;
    env.run_to_completion(OTHER).await;
    operator.stop().await;
}
