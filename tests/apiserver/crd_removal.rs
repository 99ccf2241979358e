//! The CustomResourceDefinition of TrainingJob is removed and created again.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams};
use roundhouse_tests::cluster::until;

use crate::environment::{Environment, NAMESPACE, TIMEOUT};

#[tokio::test(flavor = "multi_thread")]
async fn crd_added_again_keeps_pods_and_runs_new_jobs() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    let before = env.uids_of_staying_pods(NAMESPACE).await;

    let definitions: Api<CustomResourceDefinition> = Api::all(env.client.clone());
    let name = "trainingjobs.roundhouse.dev";
    let removed = definitions.delete(name, &DeleteParams::default()).await;
    removed.unwrap();
    until("the definition is gone", TIMEOUT, || async {
        Ok(definitions.get_opt(name).await?.is_none().then_some(()))
    })
    .await
    .unwrap();
    operator
        .until_metric(
            "roundhouse_operator_watch_restarts_total{resource=\"trainingjobs\"}",
            1.0,
        )
        .await;
    env.install_crd().await;
    env.apply("other", 1).await;
    env.until_state("other", "WaitingForWorkers").await;
    // The job is gone with its definition. Deleting its pods is left to the garbage collector,
    // which does not run here.
    assert_eq!(env.uids_of_staying_pods(NAMESPACE).await, before);
    operator.stop().await;
}
