//! The operator dies after its n-th write, for every n: the job ends as if it had not.

use kube::ResourceExt;
use kube::api::ListParams;
use roundhouse_contract::termination::Reason;
use roundhouse_tests::cluster::until;

use crate::stage::{NAMESPACE, SOON, Stage};

const WORKERS: u32 = 2;
/// More than a run without faults needs.
const MOST_WRITES: u32 = 20;

#[tokio::test(flavor = "multi_thread")]
async fn whichever_write_is_the_last_one_the_next_operator_goes_on() {
    let stage = Stage::new().await;
    for writes in 0..MOST_WRITES {
        stage.apply(NAMESPACE, WORKERS).await;
        let mut first = stage.operator(Some(writes));
        let over = run_until(&stage, || first.is_cut_off()).await;
        first.kill().await;
        let second = stage.operator(None);
        run_until(&stage, || false).await;
        second.stop().await;

        let status = stage.job(NAMESPACE).await.status.unwrap();
        let context = format!("after {writes} writes: {status:#?}");
        assert_eq!(status.front().unwrap().reason, "Completed", "{context}");
        assert_eq!(status.membership.unwrap().generation, 1, "{context}");
        assert_eq!(status.incidents.total, 0, "{context}");
        let pods = stage
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
        clean_up(&stage).await;
        if over {
            assert!(writes > 5, "a run takes more writes than {writes}");
            return;
        }
    }
    panic!("a run takes more than {MOST_WRITES} writes");
}

/// The kubelet works until the job has ended (true) or `stop` says so (false).
async fn run_until(stage: &Stage, stop: impl Fn() -> bool) -> bool {
    until("the job ends or the operator is cut off", SOON, || async {
        if stop() {
            return Ok(Some(false));
        }
        let status = stage.job(NAMESPACE).await.status.unwrap_or_default();
        if status.is_terminal() {
            return Ok(Some(true));
        }
        let trains = status.state.as_deref() == Some("Training");
        let end = trains.then_some((0, Reason::Completed));
        stage.kubelet(NAMESPACE, end).await;
        Ok(None)
    })
    .await
    .unwrap()
}

/// No garbage collector runs here.
async fn clean_up(stage: &Stage) {
    let now = kube::api::DeleteParams::default().grace_period(0);
    stage.jobs(NAMESPACE).delete("digits", &now).await.unwrap();
    stage
        .pods(NAMESPACE)
        .delete_collection(&now, &ListParams::default())
        .await
        .unwrap();
    let services: kube::Api<k8s_openapi::api::core::v1::Service> =
        kube::Api::namespaced(stage.client.clone(), NAMESPACE);
    services.delete("digits", &now).await.unwrap();
    let policies: kube::Api<k8s_openapi::api::networking::v1::NetworkPolicy> =
        kube::Api::namespaced(stage.client.clone(), NAMESPACE);
    policies.delete("digits", &now).await.unwrap();
    until("everything is gone", SOON, || async {
        let pods = stage.pods(NAMESPACE).list(&ListParams::default()).await?;
        let job = stage.jobs(NAMESPACE).get_opt("digits").await?;
        Ok((pods.items.is_empty() && job.is_none()).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_has_seen_nothing_yet_stops_when_asked() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    tokio::time::timeout(SOON, operator.stop()).await.unwrap();
}
