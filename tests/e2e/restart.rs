//! Restart mode on real pods, with an image that contains nothing of Roundhouse.

use kube::api::LogParams;
use roundhouse_api::ConditionType;
use roundhouse_tests::cluster::{DEADLINE, TestNamespace, until};
use roundhouse_tests::{nodes, processes};
use rustix::process::Signal;
use serde_json::{Value, json};

fn job() -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "script"},
        "spec": {
            "elastic": {"mode": "Restart", "leaveGraceSeconds": 5},
            "workers": {"replicas": 2, "minReplicas": 1, "template": {"spec": {"containers": [{
                "name": "trainer",
                "image": "localhost/counting-script:dev",
                "imagePullPolicy": "Never",
                "command": ["/usr/local/bin/counting-script"],
                "args": ["--steps=500", "--step-millis=50", "--directory=/state"],
                "volumeMounts": [{"name": "state", "mountPath": "/state"}],
            }], "volumes": [{"name": "state", "emptyDir": {}}]}}},
        },
    })
}

async fn log(space: &TestNamespace, pod: &str) -> String {
    let pods = space.pods();
    pods.logs(pod, &LogParams::default())
        .await
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_script_resumes_without_other_container_restarts() {
    let space = TestNamespace::create("e2e-restart", false).await.unwrap();
    space.create_object(&job()).await.unwrap();
    until("the script runs", DEADLINE, || async {
        let text = log(&space, "script-worker-1-0").await;
        let runs = text.contains("generation 1: rank 1 of 2 continues after step 0");
        Ok(runs.then_some(()))
    })
    .await
    .unwrap();
    until("the status shows a step", DEADLINE, || async {
        let job = space.jobs().get("script").await?;
        let progress = job.status.and_then(|status| status.progress);
        Ok(progress.filter(|shown| shown.progress.step > 10))
    })
    .await
    .unwrap();
    let script = nodes::process(&space.name, "script-worker-1-0").unwrap();
    assert!(processes::send(script, Signal::KILL));

    let job = space
        .ends("script", ConditionType::Succeeded)
        .await
        .unwrap();
    let status = job.status.unwrap();
    assert_eq!(status.incidents.total, 1, "{status:?}");
    assert_eq!(status.last_failure.unwrap().exit_code, Some(137));
    // Generation 2 has the survivor only, and generation 3 has both workers.
    assert_eq!(status.membership.unwrap().generation, 3);
    assert_eq!(status.progress.unwrap().progress.step, 500);
    let text = log(&space, "script-worker-0-0").await;
    assert!(text.contains("generation 2: rank 0 of 1 continues after step"));
    assert!(!text.contains("generation 2: rank 0 of 1 continues after step 0\n"));
    for (pod, restarts) in [("script-worker-0-0", 0), ("script-worker-1-0", 1)] {
        let pod = space.pods().get(pod).await.unwrap().status.unwrap();
        let container = &pod.container_statuses.unwrap()[0];
        assert_eq!(container.restart_count, restarts, "{container:?}");
    }
    space.delete().await.unwrap();
}
