//! Commands of the user's own at a real API server, in restart mode and of scripts that join: what it admits, and what
//! it refuses with a sentence.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::stage::{NAMESPACE, SOON, Stage};

type Change = fn(&mut Value);

/// As a user writes it: without what has a default.
fn script() -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "digits"},
        "spec": {
            "elastic": {"mode": "Restart"},
            "workers": {"replicas": 2, "template": {"spec": {"containers": [
                {"name": "trainer", "image": "pytorch:2", "command": ["python", "train.py"]},
            ]}}},
        },
    })
}

/// Jobs as the user's text, not as our types.
fn texts(stage: &Stage) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("roundhouse.dev", "v1alpha1", "TrainingJob");
    let resource = ApiResource::from_gvk(&kind);
    Api::namespaced_with(stage.client.clone(), NAMESPACE, &resource)
}

async fn refusal(stage: &Stage, job: &Value) -> String {
    let job = serde_json::from_value(job.clone()).unwrap();
    let refused = texts(stage).create(&PostParams::default(), &job).await;
    let Err(kube::Error::Api(status)) = refused else {
        panic!("it is admitted: {refused:?}")
    };
    assert_eq!(status.code, 422, "{}", status.message);
    status.message.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_runs_in_a_restricted_namespace_and_what_cannot_run_is_refused() {
    let stage = Stage::new().await;
    let restricted =
        json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    let namespaces: Api<Namespace> = Api::all(stage.client.clone());
    namespaces
        .patch(
            NAMESPACE,
            &PatchParams::default(),
            &Patch::Merge(&restricted),
        )
        .await
        .unwrap();

    let cases: [(&str, Change); 5] = [
        ("a script that calls roundhouse.join()", |job| {
            job["spec"]["elastic"] = json!({});
            job["spec"]["workers"]["template"]["spec"]["containers"][0]["command"] = Value::Null;
        }),
        ("leave out checkpoint.best", |job| {
            job["spec"]["elastic"] = json!({});
            job["spec"]["checkpoint"] = json!({
                "volume": {"hostPath": {"path": "/a"}}, "best": {"metric": "loss"},
            });
        }),
        ("leave out trainer", |job| {
            job["spec"]["trainer"] = json!({
                "model": {"name": "mlp"}, "data": {"format": "idx"}, "globalBatchSize": 8, "epochs": 1,
            });
        }),
        ("a container named trainer with image and command", |job| {
            job["spec"]["workers"]["template"] = json!({});
        }),
        ("a container named trainer with image and command", |job| {
            job["spec"]["workers"]["template"]["spec"]["containers"][0]["command"] = Value::Null;
        }),
    ];
    for (words, change) in cases {
        let mut job = script();
        change(&mut job);
        let message = refusal(&stage, &job).await;
        assert!(message.contains(words), "{message}");
    }

    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut joining = script();
    joining["spec"]["elastic"] = json!({"mode": "InProcess"});
    let joining = serde_json::from_value(joining).unwrap();
    let created = texts(&stage).create(&dry, &joining).await;
    assert!(created.is_ok(), "{created:?}");

    let operator = stage.operator(None);
    let job = serde_json::from_value(script()).unwrap();
    let created = texts(&stage).create(&PostParams::default(), &job).await;
    let elastic = created.unwrap().data["spec"]["elastic"].clone();
    assert_eq!(elastic["peerFailureWindowSeconds"], 5, "{elastic}");
    stage.reaches(NAMESPACE, "WaitingForWorkers").await;
    until("the pods are admitted", SOON, || async {
        let pods = stage.pods(NAMESPACE).list(&ListParams::default()).await?;
        Ok((pods.items.len() == 2).then_some(()))
    })
    .await
    .unwrap();
    stage.kubelet(NAMESPACE, None).await;
    stage.reaches(NAMESPACE, "Training").await;

    let other = Patch::Merge(json!({"spec": {"elastic": {"mode": "InProcess"}}}));
    let edited = texts(&stage)
        .patch("digits", &PatchParams::default(), &other)
        .await;
    let Err(kube::Error::Api(status)) = edited else {
        panic!("the mode is changed")
    };
    assert!(
        status.message.contains("elastic.mode is immutable"),
        "{}",
        status.message
    );
    operator.stop().await;
}
