//! The operator lacks a permission.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE};

/// Grants the user `limited` all verbs except creation, which it grants only for `kinds`.
async fn may_create(env: &Environment, kinds: &[&str]) {
    let role = json!({"metadata": {"name": "limited"}, "rules": [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch", "patch", "update", "delete"]},
        {"apiGroups": ["*"], "resources": kinds, "verbs": ["create"]},
    ]});
    let roles: Api<ClusterRole> = Api::all(env.client.clone());
    let parameters = PatchParams::apply("test");
    let mut role: Value = role;
    role["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
    role["kind"] = json!("ClusterRole");
    let applied = roles
        .patch("limited", &parameters, &Patch::Apply(role))
        .await;
    applied.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_permission_is_reported_until_granted() {
    let env = Environment::new().await;
    let needed = ["services", "networkpolicies", "events"];
    may_create(&env, &needed).await;
    let binding = json!({
        "metadata": {"name": "limited"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "limited"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "limited"}],
    });
    let binding = serde_json::from_value(binding).unwrap();
    let bindings: Api<ClusterRoleBinding> = Api::all(env.client.clone());
    let bound = bindings.create(&PostParams::default(), &binding).await;
    bound.unwrap();
    let mut config = env.server.config("test").unwrap();
    config.auth_info.impersonate = Some("limited".to_owned());
    let operator = env.operator_of_namespace(config, NAMESPACE);
    env.apply(NAMESPACE, 1).await;
    let refused = env.until_state(NAMESPACE, "Refused").await.status.unwrap();
    let message = &refused.front().unwrap().message;
    assert!(
        message.contains("cannot create resource \"pods\""),
        "{message}"
    );

    may_create(&env, &[&needed[..], &["pods"]].concat()).await;
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    env.run_until_training(NAMESPACE).await;
    operator.stop().await;
}
