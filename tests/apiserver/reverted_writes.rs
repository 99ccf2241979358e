//! An admission policy or another client reverts each write of the operator at once.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use roundhouse_api::ConditionType;
use roundhouse_contract::labels;
use roundhouse_operator::memory::repairs::Pauses;
use roundhouse_tests::apiserver::Version;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::environment::{Environment, NAMESPACE, TIMEOUT};
use crate::pod_groups::coscheduling;

/// How long the test counts the operator's writes.
const COUNTED_FOR: Duration = Duration::from_secs(6);

/// A kind of the API group admissionregistration.k8s.io/v1beta1.
fn kind(name: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: "admissionregistration.k8s.io".to_owned(),
        version: "v1beta1".to_owned(),
        api_version: "admissionregistration.k8s.io/v1beta1".to_owned(),
        kind: name.to_owned(),
        plural: plural.to_owned(),
    }
}

async fn create(env: &Environment, kind: &ApiResource, spec: Value) {
    let all: Api<DynamicObject> = Api::all_with(env.client.clone(), kind);
    let mut object = DynamicObject::new("strip", kind);
    object.data = json!({ "spec": spec });
    all.create(&PostParams::default(), &object).await.unwrap();
}

/// Installs a policy that removes the membership at each update of a pod, and waits until it is
/// enforced.
async fn strip_memberships(env: &Environment) {
    let expression = format!(
        "has(object.metadata.annotations) && '{0}' in object.metadata.annotations \
         ? [JSONPatch{{op: 'remove', path: '/metadata/annotations/' + jsonpatch.escapeKey('{0}')}}] : []",
        labels::MEMBERSHIP
    );
    let pods = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]});
    let policy = json!({
        "matchConstraints": {"resourceRules": [pods]},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
    });
    let policies = kind("MutatingAdmissionPolicy", "mutatingadmissionpolicies");
    create(env, &policies, policy).await;
    create(env, &bindings(), json!({"policyName": "strip"})).await;
    let pods = env.pods("other");
    let container = json!({"name": "probe", "image": "probe"});
    let pod = json!({"metadata": {"name": "probe"}, "spec": {"containers": [container]}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let mut attempt = 0;
    until("the policy is enforced", TIMEOUT, || {
        attempt += 1;
        let annotated = json!({"metadata": {"annotations": {
            labels::MEMBERSHIP: "", "attempt": attempt.to_string(),
        }}});
        let pods = pods.clone();
        async move {
            let patch = Patch::Merge(annotated);
            let now = pods.patch("probe", &PatchParams::default(), &patch).await?;
            let is_stripped = !now.annotations().contains_key(labels::MEMBERSHIP);
            Ok(is_stripped.then_some(()))
        }
    })
    .await
    .unwrap();
}

fn bindings() -> ApiResource {
    kind(
        "MutatingAdmissionPolicyBinding",
        "mutatingadmissionpolicybindings",
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_that_strips_memberships_is_reported() {
    let env = Environment::with_version(Version::WithPolicies).await;
    strip_memberships(&env).await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    let message = until("the status names the annotation", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let job = env.job(NAMESPACE).await;
        let status = job.status.unwrap_or_default();
        let running = status.condition(ConditionType::Running);
        let message = running.map(|running| running.message.clone());
        Ok(message.filter(|message| message.contains(labels::MEMBERSHIP)))
    })
    .await
    .unwrap();
    assert!(
        message.contains("stored something else") && message.contains("admission"),
        "{message}"
    );
    let patches = || {
        let calls = env.server.operator_calls().unwrap();
        calls.iter().filter(|it| *it == "patch pods").count()
    };
    let before = patches();
    sleep(COUNTED_FOR).await;
    let written = patches() - before;
    assert!(written <= 6, "{written} writes in {COUNTED_FOR:?}");
    let all: Api<DynamicObject> = Api::all_with(env.client.clone(), &bindings());
    let removed = all.delete("strip", &DeleteParams::default()).await;
    removed.unwrap();
    env.run_until_training(NAMESPACE).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repairs_of_a_contested_pod_group_back_off() {
    let env = Environment::new().await;
    coscheduling().install(&env).await;
    let operator = env.operator_with_repair_pauses(Pauses {
        first: Duration::from_secs(1),
        longest: Duration::from_hours(1),
    });
    env.create(NAMESPACE, coscheduling().job(2)).await;
    let groups = coscheduling().groups_in(&env, NAMESPACE);
    until("the PodGroup exists", TIMEOUT, || async {
        Ok(groups.get_opt("digits").await?)
    })
    .await
    .unwrap();
    let (begun, mut changed) = (Instant::now(), 0);
    while begun.elapsed() < COUNTED_FOR {
        let group = groups.get("digits").await.unwrap();
        if group.data["spec"]["minMember"] != json!(1) {
            changed += 1;
            let patch = Patch::Merge(json!({"spec": {"minMember": 1}}));
            let parameters = PatchParams::default();
            groups.patch("digits", &parameters, &patch).await.unwrap();
        }
        sleep(Duration::from_millis(20)).await;
    }
    // The operator repairs at once, and after 1 s, 2 s and 4 s.
    assert!((2..=4).contains(&changed), "{changed} repairs");
    operator.stop().await;
}
