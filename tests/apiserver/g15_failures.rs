//! Failures of workers, with real Pod objects.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use roundhouse_contract::termination::Reason;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

#[tokio::test(flavor = "multi_thread")]
async fn failure_policy_rule_decides_by_exit_code() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut strict = job(1);
    strict["spec"]["failurePolicy"]["rules"] = json!([
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
    ]);
    env.create(NAMESPACE, strict).await;
    env.run_until_training(NAMESPACE).await;
    env.run_kubelet(NAMESPACE, Some((42, Reason::Crashed)))
        .await;
    let job = env.until_state(NAMESPACE, "FailurePolicyRule").await;
    let status = job.status.unwrap();
    let message = &status.front().unwrap().message;
    assert!(message.starts_with("failurePolicy.rules[0]: "), "{message}");
    assert!(message.ends_with("the message of the process"), "{message}");
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hardware_fault_moves_a_worker_to_another_node() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let node = json!({"metadata": {"name": "bad", "labels": {"kubernetes.io/hostname": "rack-3"}}});
    let node = serde_json::from_value(node).unwrap();
    let nodes: Api<Node> = Api::all(env.client.clone());
    nodes.create(&PostParams::default(), &node).await.unwrap();
    env.apply(NAMESPACE, 1).await;
    env.run_until_training(NAMESPACE).await;
    env.bind("digits-worker-0-0", "bad").await;
    let fault = Some((77, Reason::HardwareFault));
    env.run_kubelet(NAMESPACE, fault).await;
    let next = until("the next attempt exists", TIMEOUT, || async {
        Ok(env.pods(NAMESPACE).get_opt("digits-worker-0-1").await?)
    })
    .await
    .unwrap();
    let affinity = serde_json::to_value(next.spec.unwrap().affinity).unwrap();
    let terms = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let expected =
        json!([{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["rack-3"]}]);
    assert_eq!(terms[0]["matchExpressions"], expected);
    assert_eq!(terms[0]["matchFields"], Value::Null);
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.avoid_nodes[0].node, "bad");
    assert_eq!(status.incidents.total, 1);
    until("the failed pod is deleted", TIMEOUT, || async {
        let old = env.pods(NAMESPACE).get_opt("digits-worker-0-0").await?;
        let leaves = old.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
        Ok(leaves.then_some(()))
    })
    .await
    .unwrap();
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_init_container_is_named_and_fails_the_job() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut limited = job(1);
    limited["spec"]["failurePolicy"]["backoffLimit"] = json!(1);
    limited["spec"]["workers"]["template"] =
        json!({"spec": {"initContainers": [{"name": "download", "image": "i"}]}});
    env.create(NAMESPACE, limited).await;
    let pods = env.pods(NAMESPACE);
    let created = until("the pod exists", TIMEOUT, || async {
        Ok(pods.get_opt("digits-worker-0-0").await?)
    })
    .await
    .unwrap();
    let init = &created.spec.unwrap().init_containers.unwrap()[0];
    let policy = init.termination_message_policy.as_deref();
    assert_eq!(policy, Some("FallbackToLogsOnError"));
    let fails = async |restarts: u32| {
        let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap();
        let common = |name: &str, restarts: u32, state: &Value| {
            json!({"name": name, "image": "i", "imageID": "i", "ready": false,
                "restartCount": restarts, "state": state})
        };
        let ended = json!({"terminated": {"exitCode": 3, "reason": "Error", "finishedAt": now.to_string(),
            "message": "downloading\nno such bucket\n"}});
        let patch = Patch::Merge(json!({"status": {
            "phase": "Pending",
            "initContainerStatuses": [common("download", restarts, &ended)],
            "containerStatuses": [common("trainer", 0, &json!({"waiting": {"reason": "PodInitializing"}}))],
        }}));
        let parameters = PatchParams::default();
        let patched = pods.patch_status("digits-worker-0-0", &parameters, &patch);
        patched.await.unwrap();
    };
    fails(0).await;
    let waiting = env.until_state(NAMESPACE, "InitContainerFailed").await;
    let status = waiting.status.unwrap();
    let message = &status.front().unwrap().message;
    let expected = "(exit code 3): init container download: no such bucket";
    assert!(message.contains(expected), "{message}");
    fails(2).await;
    let ended = env.until_state(NAMESPACE, "BackoffLimitExceeded").await;
    let status = ended.status.unwrap();
    let message = &status.front().unwrap().message;
    assert!(message.contains(expected), "{message}");
    operator.stop().await;
}
