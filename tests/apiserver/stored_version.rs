//! The TrainingJob gets a second version, in which it is stored: steps 2 to 4 of
//! docs/reference/compatibility.md.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::{CustomResourceExt, Resource, ResourceExt};
use roundhouse_api::TrainingJob;
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT};

const NEXT: &str = "v1beta1";

/// Serves the next version beside the current one, with the same schema, and makes it the storage
/// version.
async fn store_next_version(env: &Environment) -> Api<DynamicObject> {
    let crds: Api<CustomResourceDefinition> = Api::all(env.client.clone());
    let mut crd = crds.get(TrainingJob::crd_name()).await.unwrap();
    let mut next = crd.spec.versions[0].clone();
    crd.spec.versions[0].storage = false;
    crd.spec.versions[0].deprecated = Some(true);
    NEXT.clone_into(&mut next.name);
    crd.spec.versions.push(next);
    let parameters = PostParams::default();
    crds.replace(TrainingJob::crd_name(), &parameters, &crd)
        .await
        .unwrap();
    let kind = ApiResource {
        version: NEXT.to_owned(),
        api_version: format!("{}/{NEXT}", TrainingJob::group(&())),
        ..ApiResource::erase::<TrainingJob>(&())
    };
    let jobs = Api::namespaced_with(env.client.clone(), NAMESPACE, &kind);
    until("the next version is served", TIMEOUT, || async {
        Ok(jobs.list(&ListParams::default()).await.ok())
    })
    .await
    .unwrap();
    jobs
}

/// Migrates the stored objects: writes the job again without a change, and removes the old version
/// from `status.storedVersions`.
async fn migrate(env: &Environment, jobs: &Api<DynamicObject>) {
    until("the job is written again", TIMEOUT, || async {
        let job = jobs.get("digits").await?;
        // Repeated if the operator has written the job at the same time.
        Ok(jobs
            .replace("digits", &PostParams::default(), &job)
            .await
            .ok())
    })
    .await
    .unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(env.client.clone());
    let stored = Patch::Merge(json!({"status": {"storedVersions": [NEXT]}}));
    let parameters = PatchParams::default();
    crds.patch_status(TrainingJob::crd_name(), &parameters, &stored)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn job_keeps_training_during_storage_migration() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    let before = env.uids(NAMESPACE).await;
    let next = store_next_version(&env).await;
    migrate(&env, &next).await;
    assert_eq!(env.uids(NAMESPACE).await, before);

    let grow = Patch::Merge(json!({"spec": {"workers": {"replicas": 3}}}));
    next.patch("digits", &PatchParams::default(), &grow)
        .await
        .unwrap();
    let now = DeleteParams::default().grace_period(0);
    env.pods(NAMESPACE)
        .delete("digits-worker-1-0", &now)
        .await
        .unwrap();
    until("three workers train", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let job = next.get("digits").await?;
        let membership = &job.data["status"]["membership"];
        Ok((membership["nodes"] == 3).then_some(()))
    })
    .await
    .unwrap();
    env.run_until_training(NAMESPACE).await;
    let after = env.all_pods(NAMESPACE).await;
    let kept = after.iter().filter(|pod| before.contains(&pod.uid()));
    assert_eq!(kept.count(), 1, "only the deleted worker was replaced");
    operator.stop().await;
}
