//! The operator crashes after its n-th write, for every n, and the job ends as without the crash.

use kube::ResourceExt;
use kube::api::ListParams;
use roundhouse_contract::termination::Reason;
use roundhouse_tests::cluster::until;
use serde_json::Value;

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job, job_of_large_replicas};

const WORKERS: u32 = 2;
/// More writes than a job without faults needs.
const MOST_WRITES: u32 = 20;

#[tokio::test(flavor = "multi_thread")]
async fn crash_after_any_write_is_recovered() {
    recovers_from_any_crash(&job(WORKERS)).await;
}

/// Both pods are one replica, whose processes have to start together.
#[tokio::test(flavor = "multi_thread")]
async fn crash_after_any_write_for_a_large_replica_is_recovered() {
    recovers_from_any_crash(&job_of_large_replicas(1)).await;
}

async fn recovers_from_any_crash(wanted: &Value) {
    let env = Environment::new().await;
    for writes in 0..MOST_WRITES {
        env.create(NAMESPACE, wanted.clone()).await;
        let mut first = env.operator(Some(writes));
        let has_ended = run_until(&env, || first.is_cut_off()).await;
        first.kill().await;
        let second = env.operator(None);
        run_until(&env, || false).await;
        second.stop().await;

        let status = env.job(NAMESPACE).await.status.unwrap();
        let context = format!("after {writes} writes: {status:#?}");
        assert_eq!(status.front().unwrap().reason, "Completed", "{context}");
        assert_eq!(status.membership.unwrap().generation, 1, "{context}");
        assert_eq!(status.incidents.total, 0, "{context}");
        let pods = env
            .pods(NAMESPACE)
            .list(&ListParams::default())
            .await
            .unwrap();
        let mut names: Vec<_> = pods.iter().map(ResourceExt::name_any).collect();
        names.sort();
        assert_eq!(
            names,
            ["digits-worker-0-0", "digits-worker-1-0"],
            "{context}"
        );
        clean_up(&env).await;
        if has_ended {
            assert!(writes > 5, "a job takes more than {writes} writes");
            return;
        }
    }
    panic!("a job takes more than {MOST_WRITES} writes");
}

/// Runs the kubelet until the job has ended (true) or `stop` returns true (false).
async fn run_until(env: &Environment, stop: impl Fn() -> bool) -> bool {
    until(
        "the job ends or the operator is cut off",
        TIMEOUT,
        || async {
            if stop() {
                return Ok(Some(false));
            }
            let status = env.job(NAMESPACE).await.status.unwrap_or_default();
            if status.is_terminal() {
                return Ok(Some(true));
            }
            let trains = status.state.as_deref() == Some("Training");
            let end = trains.then_some((0, Reason::Completed));
            env.run_kubelet(NAMESPACE, end).await;
            Ok(None)
        },
    )
    .await
    .unwrap()
}

/// Deletes the objects of the job: no garbage collector runs here.
async fn clean_up(env: &Environment) {
    let now = kube::api::DeleteParams::default().grace_period(0);
    env.jobs(NAMESPACE).delete("digits", &now).await.unwrap();
    env.pods(NAMESPACE)
        .delete_collection(&now, &ListParams::default())
        .await
        .unwrap();
    let services: kube::Api<k8s_openapi::api::core::v1::Service> =
        kube::Api::namespaced(env.client.clone(), NAMESPACE);
    services.delete("digits", &now).await.unwrap();
    let policies: kube::Api<k8s_openapi::api::networking::v1::NetworkPolicy> =
        kube::Api::namespaced(env.client.clone(), NAMESPACE);
    policies.delete("digits", &now).await.unwrap();
    until("everything is gone", TIMEOUT, || async {
        let pods = env.pods(NAMESPACE).list(&ListParams::default()).await?;
        let job = env.jobs(NAMESPACE).get_opt("digits").await?;
        Ok((pods.items.is_empty() && job.is_none()).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_stops_before_its_caches_are_filled() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    tokio::time::timeout(TIMEOUT, operator.stop())
        .await
        .unwrap();
}
