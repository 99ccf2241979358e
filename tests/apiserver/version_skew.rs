//! Operators of two versions take turns at a job that trains. `make test-long` builds the older one.

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

/// Waits until all workers have been told the generation, and asserts that they were told the same and built from the same.
async fn are_told(env: &Environment, workers: usize, generation: u64) {
    let told = until("all are told", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let pods = env.all_pods(NAMESPACE).await;
        let told = pods.iter().filter_map(|pod| {
            let document = pod.annotations().get(labels::MEMBERSHIP)?;
            Membership::parse(document).ok().flatten()
        });
        let told: Vec<Membership> = told.filter(|it| it.generation == generation).collect();
        let are_all = pods.len() == workers && told.len() == workers;
        Ok(are_all.then_some((told, pods)))
    });
    let (told, pods) = told.await.unwrap();
    let one_world: BTreeSet<_> = told.iter().map(|it| (&it.nonce, it.world_size())).collect();
    assert_eq!(one_world.len(), 1, "{told:#?}");
    let ranks: BTreeSet<u32> = told.iter().map(|it| it.node_rank).collect();
    assert_eq!(ranks.len(), workers, "{told:#?}");
    let run: BTreeSet<_> = pods.iter().map(what_runs).collect();
    assert_eq!(run.len(), 1, "{run:#?}");
    // Pods of an older operator may not say.
    let built_from: BTreeSet<_> = pods.iter().filter_map(built_from).collect();
    assert!(built_from.len() < 2, "{built_from:#?}");
}

/// Image and command of each container, and the configuration.
fn what_runs(pod: &Pod) -> (String, Option<String>) {
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

/// A worker is lost, and then the job grows by one and shrinks again. The others are those that they were.
async fn changes(env: &Environment, generation: &mut u64) {
    let before = env.all_pods(NAMESPACE).await;
    let now = DeleteParams::default().grace_period(0);
    let lost = before[usize::try_from(*generation).unwrap() % WORKERS].name_any();
    env.pods(NAMESPACE).delete(&lost, &now).await.unwrap();
    *generation += 1;
    are_told(env, WORKERS, *generation).await;
    for workers in [WORKERS + 1, WORKERS] {
        let edit = json!({"workers": {"replicas": workers}});
        env.edit(&edit).await.unwrap();
        *generation += 1;
        are_told(env, workers, *generation).await;
    }
    let after = env.uids(NAMESPACE).await;
    let kept = before.iter().filter(|pod| after.contains(&pod.uid()));
    assert_eq!(kept.count(), WORKERS - 1);
}

/// Nothing changes while an operator looks at the job for the first time.
async fn rests(env: &Environment, generation: u64) {
    let before = env.uids(NAMESPACE).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let after = env.uids(NAMESPACE).await;
    assert_eq!(before, after);
    are_told(env, WORKERS, generation).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an older operator: make test-long builds it"]
async fn change_of_version_restarts_no_pod() {
    let env = Environment::new().await;
    let mut generation = 1;
    let before = older(&env);
    env.apply(NAMESPACE, u32::try_from(WORKERS).unwrap()).await;
    env.run_until_training(NAMESPACE).await;
    are_told(&env, WORKERS, generation).await;
    before.stop();
    for _ in 0..2 {
        let newer = env.operator(None);
        rests(&env, generation).await;
        changes(&env, &mut generation).await;
        newer.stop().await;

        let before = older(&env);
        rests(&env, generation).await;
        changes(&env, &mut generation).await;
        before.stop();
    }
    let newer = env.operator(None);
    rests(&env, generation).await;
    newer.stop().await;
}
