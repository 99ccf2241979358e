//! Jobs with the user's own command, in restart mode or with `roundhouse.join()`: what the API
//! server admits, and its messages for what it refuses.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, TIMEOUT};

type Change = fn(&mut Value);

/// A job as a user writes it, without the fields that have defaults.
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

/// Jobs as JSON, so that the Rust types add no defaults.
fn untyped_jobs(env: &Environment) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("roundhouse.dev", "v1alpha1", "TrainingJob");
    let resource = ApiResource::from_gvk(&kind);
    Api::namespaced_with(env.client.clone(), NAMESPACE, &resource)
}

async fn refusal(env: &Environment, job: &Value) -> String {
    let job = serde_json::from_value(job.clone()).unwrap();
    let refused = untyped_jobs(env).create(&PostParams::default(), &job).await;
    let Err(kube::Error::Api(status)) = refused else {
        panic!("the job is admitted: {refused:?}")
    };
    assert_eq!(status.code, 422, "{}", status.message);
    status.message.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn restricted_namespace_runs_only_valid_scripts() {
    let env = Environment::new().await;
    let restricted =
        json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    let namespaces: Api<Namespace> = Api::all(env.client.clone());
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
        let message = refusal(&env, &job).await;
        assert!(message.contains(words), "{message}");
    }

    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut joining = script();
    joining["spec"]["elastic"] = json!({"mode": "InProcess"});
    let joining = serde_json::from_value(joining).unwrap();
    let created = untyped_jobs(&env).create(&dry, &joining).await;
    assert!(created.is_ok(), "{created:?}");

    let operator = env.operator(None);
    let job = serde_json::from_value(script()).unwrap();
    let created = untyped_jobs(&env)
        .create(&PostParams::default(), &job)
        .await;
    let elastic = created.unwrap().data["spec"]["elastic"].clone();
    assert_eq!(elastic["peerFailureWindowSeconds"], 5, "{elastic}");
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    until("the pods are admitted", TIMEOUT, || async {
        let pods = env.pods(NAMESPACE).list(&ListParams::default()).await?;
        Ok((pods.items.len() == 2).then_some(()))
    })
    .await
    .unwrap();
    env.run_kubelet(NAMESPACE, None).await;
    env.until_state(NAMESPACE, "Training").await;

    let other = Patch::Merge(json!({"spec": {"elastic": {"mode": "InProcess"}}}));
    let edited = untyped_jobs(&env)
        .patch("digits", &PatchParams::default(), &other)
        .await;
    let Err(kube::Error::Api(status)) = edited else {
        panic!("the edit is admitted")
    };
    assert!(
        status.message.contains("elastic.mode is immutable"),
        "{}",
        status.message
    );
    operator.stop().await;
}
