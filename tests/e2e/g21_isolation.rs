//! The NetworkPolicy on a network that enforces it: pods of other jobs reach only a worker's
//! metrics.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams, PostParams};
use roundhouse_contract::ports;
use roundhouse_tests::cluster::{DEADLINE, TestNamespace, until};
use roundhouse_tests::manifests;
use serde_json::json;

/// Runs a command in a new pod, and returns its exit code.
async fn run(pods: &Api<Pod>, name: &str, command: &str) -> i32 {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "stranger", "image": "localhost/toolbox:1", "command": ["sh", "-c", command],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    until("the stranger's command ends", DEADLINE, || async {
        let status = pods.get(name).await?.status.unwrap_or_default();
        let ended = status
            .container_statuses
            .unwrap_or_default()
            .into_iter()
            .find_map(|container| container.state?.terminated);
        Ok(ended.map(|ended| ended.exit_code))
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn other_pods_reach_only_the_metrics_of_a_worker() {
    let space = TestNamespace::create("e2e-isolation", false).await.unwrap();
    for mut object in manifests::read("examples/digits.yaml").unwrap() {
        if object["kind"] == "TrainingJob" {
            object["spec"]["trainer"]["epochs"] = json!(100_000);
        }
        space.create_object(&object).await.unwrap();
    }
    let address = until("the job trains", DEADLINE, || async {
        let job = space.jobs().get("digits").await?;
        let trains = job
            .status
            .is_some_and(|status| status.is_true(roundhouse_api::ConditionType::Running));
        let pod = space.pods().get_opt("digits-worker-0-0").await?;
        let ip = pod.and_then(|pod| pod.status?.pod_ip);
        Ok(ip.filter(|_| trains))
    })
    .await
    .unwrap();
    // The c10d store does not speak HTTP, so the command checks only whether curl could connect.
    let connect = |port: u16| {
        let curl =
            format!("curl -s -o /dev/null -m 3 -w '%{{time_connect}}' http://{address}:{port}/");
        format!("[ \"$({curl})\" != 0.000000 ]")
    };
    let store = connect(ports::RENDEZVOUS);
    let metrics = connect(ports::AGENT_HTTP);
    // The other paths of this port are for readers of the job, whose requests the API server
    // forwards.
    let code = "curl -s -o /dev/null -m 3 -w '%{http_code}'";
    let (port, path) = (ports::AGENT_HTTP, ports::RESTARTS_PATH);
    let refused = format!("[ \"$({code} http://{address}:{port}{path})\" = 403 ]");
    let scraper = format!("{metrics} && {refused}");
    assert_eq!(run(&space.pods(), "scraper", &scraper).await, 0);
    until("the agent answers a reader", DEADLINE, || async {
        let membership = space.jobs().get("digits").await?.status;
        let nonce = membership.and_then(|status| Some(status.membership?.nonce));
        let nonce = nonce.unwrap_or_default();
        let answer = space.ask_as_reader("digits-worker-0-0", path, &nonce).await;
        Ok(answer.ok())
    })
    .await
    .unwrap();
    assert_ne!(run(&space.pods(), "stranger", &store).await, 0);
    // The same command in a pod with the job's label reaches the store.
    let member = json!({"metadata": {"labels": {
        roundhouse_contract::labels::JOB_UID: space.jobs().get("digits").await.unwrap().metadata.uid,
    }}});
    let later = format!("sleep 5; {store}");
    let (pods, label) = (space.pods(), Patch::Merge(&member));
    let labelled = async {
        until("the pod exists and has the label", DEADLINE, || async {
            Ok(pods
                .patch("member", &PatchParams::default(), &label)
                .await
                .ok())
        })
        .await
    };
    let (reached, labelled) = tokio::join!(run(&pods, "member", &later), labelled);
    labelled.unwrap();
    assert_eq!(reached, 0);
    space.delete().await.unwrap();
}
