//! The example digits.yaml as a user applies it, and variations of it.

use roundhouse_api::{ConditionType, TrainingJob};
use roundhouse_tests::cluster::{DEADLINE, TestNamespace, until};
use roundhouse_tests::{manifests, nodes, processes};
use rustix::process::Signal;
use serde_json::{Value, json};

async fn apply(space: &TestNamespace, change: impl Fn(&mut Value)) {
    for mut object in manifests::read("examples/digits.yaml").unwrap() {
        if object["kind"] == "TrainingJob" {
            change(&mut object["spec"]);
        }
        space.create_object(&object).await.unwrap();
    }
}

fn epochs(spec: &mut Value, epochs: u32) {
    spec["trainer"]["epochs"] = json!(epochs);
}

fn accuracy(job: &TrainingJob) -> f64 {
    let progress = job.status.as_ref().unwrap().progress.as_ref().unwrap();
    assert_eq!(progress.percent, "100%");
    progress.progress.eval_accuracy.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_learn_the_digits_and_clean_up() {
    let space = TestNamespace::create("e2e-two", false).await.unwrap();
    apply(&space, |spec| epochs(spec, 40)).await;

    let exposed = until("a worker exposes its metrics", DEADLINE, || async {
        let text = space.metrics("digits-worker-0-0").await.unwrap_or_default();
        let has_all = [
            "roundhouse_train_world_size{rank=\"0\"} 2",
            "roundhouse_train_loss{rank=\"0\"}",
            "roundhouse_agent_process_up{local_rank=\"0\"} 1",
        ]
        .iter()
        .all(|series| text.contains(series));
        Ok(has_all.then_some(()))
    });
    assert!(exposed.await.is_ok(), "{}", space.dump().await);
    let mut children = space.children("digits").await.unwrap();
    children.sort();
    let expected = [
        "NetworkPolicy/digits",
        "Pod/digits-worker-0-0",
        "Pod/digits-worker-1-0",
        "Service/digits",
    ];
    assert_eq!(children, expected);

    let job = space
        .ends("digits", ConditionType::Succeeded)
        .await
        .unwrap();
    assert!(accuracy(&job) >= 0.95, "{}", accuracy(&job));
    let status = job.status.unwrap();
    assert_eq!(status.membership.as_ref().unwrap().generation, 1);
    assert_eq!(status.incidents.total, 0);
    assert_eq!(status.front().unwrap().reason, "Completed");
    // The operator publishes Events after it has written the status.
    let reasons = until("the Event Succeeded exists", DEADLINE, || async {
        let reasons = space.event_reasons("digits").await?;
        Ok(reasons.contains(&"Succeeded".to_owned()).then_some(reasons))
    })
    .await
    .unwrap();
    for reason in ["Accepted", "GenerationIssued", "Succeeded"] {
        let published = reasons.iter().filter(|seen| *seen == reason);
        assert_eq!(published.count(), 1, "{reasons:?}");
    }

    space
        .jobs()
        .delete("digits", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    until("the job's objects are deleted", DEADLINE, || async {
        Ok(space.children("digits").await?.is_empty().then_some(()))
    })
    .await
    .unwrap();
    space.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_with_two_processes_learn_the_digits() {
    let space = TestNamespace::create("e2e-two-by-two", false)
        .await
        .unwrap();
    apply(&space, |spec| {
        epochs(spec, 20);
        spec["workers"]["procsPerWorker"] = json!(2);
    })
    .await;
    let job = space
        .ends("digits", ConditionType::Succeeded)
        .await
        .unwrap();
    assert!(accuracy(&job) >= 0.95, "{}", accuracy(&job));
    assert_eq!(job.status.unwrap().membership.unwrap().world_size, 4);
    space.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_data_fails_the_job_with_the_path() {
    let space = TestNamespace::create("e2e-no-data", false).await.unwrap();
    apply(&space, |spec| {
        spec["trainer"]["data"]["path"] = json!("elsewhere")
    })
    .await;
    let job = space.ends("digits", ConditionType::Failed).await.unwrap();
    let status = job.status.unwrap();
    assert_eq!(status.front().unwrap().reason, "DataInvalid");
    assert!(
        status.front().unwrap().message.contains("/data/elsewhere"),
        "{:?}",
        status.front().unwrap()
    );
    until("no pod is running", DEADLINE, || async {
        let pods = space.pods().list(&kube::api::ListParams::default()).await?;
        let running = |pod: &k8s_openapi::api::core::v1::Pod| {
            pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running")
        };
        Ok((!pods.iter().any(running)).then_some(()))
    })
    .await
    .unwrap();
    space.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_worker_is_an_incident_without_other_restarts() {
    let space = TestNamespace::create("e2e-kill", false).await.unwrap();
    apply(&space, |spec| {
        epochs(spec, 90);
        spec["workers"]["minReplicas"] = json!(1);
        spec["elastic"] = json!({"joinWindowSeconds": 60});
    })
    .await;
    until("training runs", DEADLINE, || async {
        let text = space.metrics("digits-worker-1-0").await.unwrap_or_default();
        Ok(text
            .contains("roundhouse_train_world_size{rank=\"1\"} 2")
            .then_some(()))
    })
    .await
    .unwrap();
    let agent = nodes::agent(&space.name, "digits-worker-1-0").unwrap();
    assert!(processes::send(agent, Signal::KILL));
    let job = space
        .ends("digits", ConditionType::Succeeded)
        .await
        .unwrap();
    let status = job.status.unwrap();
    assert_eq!(status.incidents.total, 1, "{status:?}");
    // Generation 2 has the survivor only, and generation 3 has both workers.
    assert_eq!(status.membership.unwrap().generation, 3);
    assert_eq!(status.last_failure.unwrap().exit_code, Some(137));
    assert!(status.progress.unwrap().progress.eval_accuracy.unwrap() > 0.95);
    for (pod, restarts) in [("digits-worker-0-0", 0), ("digits-worker-1-0", 1)] {
        let pod = space.pods().get(pod).await.unwrap().status.unwrap();
        let container = &pod.container_statuses.unwrap()[0];
        assert_eq!(container.restart_count, restarts, "{container:?}");
    }
    space.delete().await.unwrap();
}
