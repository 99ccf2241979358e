//! Operators of two versions manage a training job in turn. `make test-long` builds the older
//! operator.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use roundhouse_contract::{BuiltFrom, Membership, labels};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, OperatorProcess, TIMEOUT, program_of};

const WORKERS: usize = 3;

fn older(env: &Environment) -> OperatorProcess {
    let program = program_of("ROUNDHOUSE_OLDER_OPERATOR");
    OperatorProcess::start(env, "older.log", &program, &[])
}

/// Waits until all workers have a membership of the generation. Checks that they are one process
/// group with distinct ranks, and that all pods were built from the same spec and image.
async fn until_generation(env: &Environment, workers: usize, generation: u64) {
    let found = until("all workers are in the generation", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let pods = env.all_pods(NAMESPACE).await;
        let places = pods.iter().filter_map(|pod| {
            let document = pod.annotations().get(labels::MEMBERSHIP)?;
            Membership::parse(document).ok().flatten()
        });
        let places: Vec<Membership> = places.filter(|it| it.generation == generation).collect();
        let are_all = pods.len() == workers && places.len() == workers;
        Ok(are_all.then_some((places, pods)))
    });
    let (places, pods) = found.await.unwrap();
    let groups: BTreeSet<_> = places
        .iter()
        .map(|it| (&it.nonce, it.world_size()))
        .collect();
    assert_eq!(groups.len(), 1, "{places:#?}");
    let ranks: BTreeSet<u32> = places.iter().map(|it| it.node_rank).collect();
    assert_eq!(ranks.len(), workers, "{places:#?}");
    let containers: BTreeSet<_> = pods.iter().map(containers_of).collect();
    assert_eq!(containers.len(), 1, "{containers:#?}");
    // Pods of an older operator may lack this annotation.
    let built_from: BTreeSet<_> = pods.iter().filter_map(built_from).collect();
    assert!(built_from.len() < 2, "{built_from:#?}");
}

/// The image and command of each container, and the configuration of the trainer.
fn containers_of(pod: &Pod) -> (String, Option<String>) {
    let containers = &pod.spec.as_ref().unwrap().containers;
    let runs = containers
        .iter()
        .map(|it| (&it.image, &it.command, &it.args));
    let config = pod.annotations().get(labels::TRAINER_CONFIG).cloned();
    (format!("{:?}", runs.collect::<Vec<_>>()), config)
}

fn built_from(pod: &Pod) -> Option<(String, String)> {
    let text = pod.annotations().get(labels::BUILT_FROM)?;
    let it = BuiltFrom::parse(text).unwrap();
    Some((it.spec, it.trainer_image))
}

/// Deletes a worker, then grows the job by one worker and shrinks it again. Checks that the other
/// workers stay.
async fn replace_and_scale(env: &Environment, generation: &mut u64) {
    let before = env.all_pods(NAMESPACE).await;
    let now = DeleteParams::default().grace_period(0);
    let lost = before[usize::try_from(*generation).unwrap() % WORKERS].name_any();
    env.pods(NAMESPACE).delete(&lost, &now).await.unwrap();
    *generation += 1;
    until_generation(env, WORKERS, *generation).await;
    for workers in [WORKERS + 1, WORKERS] {
        let edit = json!({"workers": {"replicas": workers}});
        env.edit(&edit).await.unwrap();
        *generation += 1;
        until_generation(env, workers, *generation).await;
    }
    let after = env.uids(NAMESPACE).await;
    let kept = before.iter().filter(|pod| after.contains(&pod.uid()));
    assert_eq!(kept.count(), WORKERS - 1);
}

/// Checks that a new operator changes nothing when it reconciles the job for the first time.
async fn stays_unchanged(env: &Environment, generation: u64) {
    let before = env.uids(NAMESPACE).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let after = env.uids(NAMESPACE).await;
    assert_eq!(before, after);
    until_generation(env, WORKERS, generation).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an older operator: make test-long builds it"]
async fn change_of_version_restarts_no_pod() {
    let env = Environment::new().await;
    let mut generation = 1;
    let before = older(&env);
    env.apply(NAMESPACE, u32::try_from(WORKERS).unwrap()).await;
    env.run_until_training(NAMESPACE).await;
    until_generation(&env, WORKERS, generation).await;
    before.stop();
    for _ in 0..2 {
        let newer = env.operator(None);
        stays_unchanged(&env, generation).await;
        replace_and_scale(&env, &mut generation).await;
        newer.stop().await;

        let before = older(&env);
        stays_unchanged(&env, generation).await;
        replace_and_scale(&env, &mut generation).await;
        before.stop();
    }
    let newer = env.operator(None);
    stays_unchanged(&env, generation).await;
    newer.stop().await;
}
