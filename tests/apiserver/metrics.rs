//! The metrics of an operator while it reconciles a job.

use k8s_openapi::api::core::v1::Binding;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, PostParams};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, Operator, TIMEOUT, job};

const WORKERS: u32 = 2;

/// Binds each pod to a node, as the scheduler does.
async fn schedule(env: &Environment) {
    let pods = env.pods(NAMESPACE);
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        let binding =
            json!({"metadata": {"name": pod.name_any()}, "target": {"kind": "Node", "name": "n1"}});
        let binding: Binding = serde_json::from_value(binding).unwrap();
        let (name, parameters) = (pod.name_any(), PostParams::default());
        let bound = pods.create_subresource("binding", &name, &parameters, &binding);
        let _: serde_json::Value = bound.await.unwrap();
    }
}

/// Waits until the value of a series is as expected.
async fn until_is(operator: &Operator, series: &str, is: impl Fn(Option<f64>) -> bool) {
    let what = format!("{series}, now {:?}", operator.metric(series));
    let met = until(&what, TIMEOUT, || async {
        Ok(is(operator.metric(series)).then_some(()))
    });
    met.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_follow_a_job_until_its_deletion() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut with_gpus = job(WORKERS);
    with_gpus["spec"]["workers"]["template"] = json!({"spec": {"containers": [
        {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 4}}},
    ]}});
    env.create(NAMESPACE, with_gpus).await;
    let gpus = "roundhouse_job_gpus{job=\"digits\",namespace=\"ml\"}";
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    until_is(&operator, gpus, |held| held == Some(0.0)).await;
    until("both pods exist", TIMEOUT, || async {
        let pods = env.pods(NAMESPACE).list(&ListParams::default()).await?;
        Ok((pods.items.len() == WORKERS as usize).then_some(()))
    })
    .await
    .unwrap();
    schedule(&env).await;
    until_is(&operator, gpus, |held| held == Some(8.0)).await;
    env.run_until_training(NAMESPACE).await;
    let trained = "roundhouse_job_gpu_training_seconds_total{job=\"digits\",namespace=\"ml\"}";
    let held = "roundhouse_job_gpu_held_seconds_total{job=\"digits\",namespace=\"ml\"}";
    until_is(&operator, trained, |seconds| seconds > Some(0.0)).await;
    assert!(operator.metric(trained) <= operator.metric(held));

    let calls = |verb: &str, resource: &str, code: &str| {
        operator.metric(&format!(
            "roundhouse_operator_api_calls_total{{code=\"{code}\",resource=\"{resource}\",verb=\"{verb}\"}}"
        ))
    };
    assert_eq!(calls("create", "pods", "201"), Some(f64::from(WORKERS)));
    assert!(calls("watch", "trainingjobs", "200") >= Some(1.0));
    assert!(calls("patch", "trainingjobs/status", "200") >= Some(2.0));
    for (series, least) in [
        (
            "roundhouse_operator_reconciles_total{result=\"Training\"}",
            1.0,
        ),
        (
            "roundhouse_operator_reconcile_seconds_count{result=\"Training\"}",
            1.0,
        ),
        (
            "roundhouse_operator_actions_total{action=\"IssueMembership\"}",
            2.0,
        ),
        ("roundhouse_operator_queue_wait_seconds_count", 3.0),
        (
            "roundhouse_operator_api_call_seconds_count{verb=\"create\"}",
            4.0,
        ),
        ("roundhouse_operator_leader", 1.0),
        ("roundhouse_jobs{namespace=\"ml\",state=\"Training\"}", 1.0),
        (
            "roundhouse_job_workers{job=\"digits\",namespace=\"ml\",state=\"active\"}",
            2.0,
        ),
        ("roundhouse_job_time_to_ready_seconds_count", 1.0),
        ("roundhouse_job_start_seconds_count", 1.0),
    ] {
        assert!(
            operator.metric(series) >= Some(least),
            "{series}: {:?}",
            operator.metric(series)
        );
    }

    let jobs = env.jobs(NAMESPACE);
    jobs.delete("digits", &DeleteParams::background())
        .await
        .unwrap();
    until_is(&operator, gpus, |held| held.is_none()).await;
    let counted = operator.metric("roundhouse_jobs{namespace=\"ml\",state=\"Training\"}");
    assert_eq!(counted, None);
    let registry = operator.registry.clone();
    operator.stop().await;
    assert_eq!(
        crate::environment::metric(&registry, "roundhouse_operator_leader"),
        Some(0.0)
    );
}
