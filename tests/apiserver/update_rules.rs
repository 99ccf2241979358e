//! Rules for edits of a job in the CEL rules of the TrainingJob: what the API server refuses, and
//! its messages.

use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, job};

/// The API server's message for an edit that it must refuse.
async fn refusal(env: &Environment, spec: &Value) -> String {
    match env.edit(spec).await {
        Err(kube::Error::Api(status)) => status.message.clone(),
        other => panic!("{spec}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_settings_are_immutable_unless_suspended() {
    let env = Environment::new().await;
    let mut first = job(1);
    first["spec"]["checkpoint"] = json!({"volume": {"persistentVolumeClaim": {"claimName": "c"}}});
    env.create(NAMESPACE, first).await;
    let edits = [
        (json!({"checkpoint": {"keep": 5}}), "spec.checkpoint"),
        (json!({"checkpoint": null}), "spec.checkpoint"),
        (
            json!({"failurePolicy": {"rules": [{"action": "Ignore", "onReasons": ["x"]}]}}),
            "spec.failurePolicy",
        ),
        (
            json!({"stallTimeoutSeconds": 60}),
            "spec.stallTimeoutSeconds",
        ),
        (
            json!({"elastic": {"leaveGraceSeconds": 60}}),
            "spec.elastic",
        ),
        (
            json!({"scheduling": {"priorityClassName": "low"}}),
            "spec.scheduling",
        ),
        (
            json!({"scheduling": {"topologyKey": "rack"}}),
            "spec.scheduling",
        ),
        (json!({"workers": {"sharded": false}}), "spec.workers"),
    ];
    for (spec, field) in &edits {
        let message = refusal(&env, spec).await;
        assert!(
            message.contains(field) && message.contains("suspend: true"),
            "{message}"
        );
    }
    env.edit(&json!({"suspend": true})).await.unwrap();
    for (spec, _) in &edits {
        env.edit(spec).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_can_place_and_resume_a_job_in_one_update() {
    let env = Environment::new().await;
    let mut queued = job(1);
    queued["spec"]["suspend"] = json!(true);
    env.create(NAMESPACE, queued).await;
    let placed = |pool: Value| json!({"template": {"spec": {"nodeSelector": {"pool": pool}}}});
    let admitted = json!({"suspend": false, "workers": placed(json!("spot"))});
    env.edit(&admitted).await.unwrap();
    env.edit(&json!({"suspend": true})).await.unwrap();
    let restored = json!({"workers": placed(Value::Null)});
    env.edit(&restored).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn network_policy_is_immutable() {
    let env = Environment::new().await;
    env.create(NAMESPACE, job(1)).await;
    let message = refusal(&env, &json!({"networkPolicy": "None"})).await;
    assert!(message.contains("networkPolicy is immutable"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn gang_scheduler_is_immutable() {
    let env = Environment::new().await;
    env.create(NAMESPACE, job(1)).await;
    let message = refusal(&env, &json!({"scheduling": {"gang": "Volcano"}})).await;
    assert!(message.contains("gang is immutable"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_scaling_is_immutable() {
    let env = Environment::new().await;
    let mut first = job(1);
    first["spec"]["elastic"] =
        json!({"onScale": "ScaleBatch", "scaleBatch": {"referenceReplicas": 1}});
    env.create(NAMESPACE, first).await;
    for elastic in [
        json!({"scaleBatch": {"referenceReplicas": 2}}),
        json!({"onScale": "KeepGlobalBatch", "scaleBatch": null}),
    ] {
        let message = refusal(&env, &json!({"elastic": elastic})).await;
        assert!(message.contains("is immutable"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_model_options_are_kept_and_immutable() {
    let env = Environment::new().await;
    let mut first = job(1);
    let options = json!({"units": 3, "layers": [{"width": 0.5}, {"width": null}], "name": "tides"});
    first["spec"]["trainer"]["options"] = options.clone();
    first["spec"]["trainer"]["model"] = json!({"name": "custom"});
    env.create(NAMESPACE, first).await;
    let trainer = env.job(NAMESPACE).await.spec.trainer.unwrap();
    assert_eq!(serde_json::to_value(&trainer.options).unwrap(), options);
    for edited in [
        json!({"units": 4}),
        json!({"units": null}),
        json!({"units": null, "unit": 3}),
        json!({"units": {"a": 1}}),
        json!({"more": true}),
        json!({"layers": [{"width": 0.6}, {"width": null}]}),
    ] {
        let message = refusal(&env, &json!({"trainer": {"options": edited}})).await;
        assert!(message.contains("trainer is immutable"), "{message}");
    }
}
