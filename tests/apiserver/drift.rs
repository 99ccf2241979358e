//! Drift: another client edits or deletes objects of a job.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use roundhouse_operator::memory::repairs::Pauses;
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT};
use crate::events::published;

#[tokio::test(flavor = "multi_thread")]
async fn modified_service_and_policy_are_repaired_once() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    env.run_until_training(NAMESPACE).await;
    let services: Api<Service> = Api::namespaced(env.client.clone(), NAMESPACE);
    let policies: Api<NetworkPolicy> = Api::namespaced(env.client.clone(), NAMESPACE);
    let service = services.get("digits").await.unwrap();
    let policy = policies.get("digits").await.unwrap();
    let edited = PatchParams::default();
    let labels = json!({"labels": {"team": "vision"}});
    let wrong = json!({"metadata": labels, "spec": {
        "selector": {"app": "another"}, "publishNotReadyAddresses": false,
    }});
    services
        .patch("digits", &edited, &Patch::Merge(&wrong))
        .await
        .unwrap();
    let open = json!({"metadata": labels, "spec": {"ingress": [{}]}});
    policies
        .patch("digits", &edited, &Patch::Merge(&open))
        .await
        .unwrap();
    let repaired = until("both objects are repaired", TIMEOUT, || async {
        let now = services.get("digits").await?;
        let policy_now = policies.get("digits").await?;
        let is = now.spec == service.spec && policy_now.spec == policy.spec;
        Ok(is.then_some((now, policy_now)))
    });
    let (service, policy) = repaired.await.unwrap();
    assert_eq!(service.labels()["team"], "vision");
    assert_eq!(policy.labels()["team"], "vision");
    // The operator repairs each object once and leaves unchanged objects alone.
    env.edit(&json!({"suspend": true})).await.unwrap();
    env.until_state(NAMESPACE, "Suspended").await;
    env.edit(&json!({"suspend": false})).await.unwrap();
    env.run_until_training(NAMESPACE).await;
    operator.stop().await;
    let calls = env.server.operator_calls().unwrap();
    let count = |call: &str| calls.iter().filter(|it| *it == call).count();
    assert_eq!(count("patch services"), 1, "{calls:#?}");
    assert_eq!(count("patch networkpolicies"), 1, "{calls:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reverted_repairs_back_off_and_are_reported() {
    let env = Environment::new().await;
    let operator = env.operator_with_repair_pauses(Pauses {
        first: Duration::from_secs(1),
        longest: Duration::from_hours(1),
    });
    env.apply(NAMESPACE, 1).await;
    env.run_until_training(NAMESPACE).await;
    let services: Api<Service> = Api::namespaced(env.client.clone(), NAMESPACE);
    let spec = services.get("digits").await.unwrap().spec;
    let wrong = Patch::Merge(json!({"spec": {"publishNotReadyAddresses": false}}));
    for _ in 0..3 {
        services
            .patch("digits", &PatchParams::default(), &wrong)
            .await
            .unwrap();
        until("the Service is repaired", TIMEOUT, || async {
            Ok((services.get("digits").await?.spec == spec).then_some(()))
        })
        .await
        .unwrap();
    }
    until("the event is published twice", TIMEOUT, || async {
        let all = published(&env).await;
        let mut undone = all
            .iter()
            .filter(|event| event.reason.as_deref() == Some("RepairReverted"));
        let event = undone.next();
        let note = event.and_then(|event| event.note.as_deref());
        let count = event.and_then(|event| Some(event.series.as_ref()?.count));
        let names_it = note.is_some_and(|note| note.contains("Service digits"));
        Ok((names_it && count == Some(2)).then_some(()))
    })
    .await
    .unwrap();
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn service_deleted_repeatedly_is_recreated_and_reported() {
    let env = Environment::new().await;
    let operator = env.operator_with_repair_pauses(Pauses {
        first: Duration::from_secs(1),
        longest: Duration::from_hours(1),
    });
    env.apply(NAMESPACE, 1).await;
    env.run_until_training(NAMESPACE).await;
    let services: Api<Service> = Api::namespaced(env.client.clone(), NAMESPACE);
    for _ in 0..3 {
        let uid = services.get("digits").await.unwrap().uid();
        let now = DeleteParams::default();
        services.delete("digits", &now).await.unwrap();
        until("the Service is created again", TIMEOUT, || async {
            let service = services.get_opt("digits").await?;
            Ok(service.filter(|it| it.uid() != uid))
        })
        .await
        .unwrap();
    }
    until("the event is published", TIMEOUT, || async {
        let all = published(&env).await;
        let mut reverted = all
            .iter()
            .filter(|event| event.reason.as_deref() == Some("RepairReverted"));
        let note = reverted.next().and_then(|event| event.note.clone());
        Ok(note.filter(|note| note.starts_with("Service digits was deleted again")))
    })
    .await
    .unwrap();
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_peers_are_added_to_existing_policies() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    env.run_until_training(NAMESPACE).await;
    operator.stop().await;
    let peers = json!([{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]);
    let operator = env.operator_with_arguments(&[&format!("--worker-metrics-from={peers}")]);
    let policies: Api<NetworkPolicy> = Api::namespaced(env.client.clone(), NAMESPACE);
    until("only the metrics peers may connect", TIMEOUT, || async {
        let policy = serde_json::to_value(policies.get("digits").await?)?;
        let rules = &policy["spec"]["ingress"];
        let others = rules.as_array().map(Vec::len);
        Ok((others == Some(2) && rules[1]["from"] == peers).then_some(()))
    })
    .await
    .unwrap();
    operator.stop().await;
}
