//! A member whose kubelet does not show it its document.

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use roundhouse_contract::{Membership, labels};
use roundhouse_tests::cluster::until;

use crate::stage::{NAMESPACE, SOON, Stage, running};

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_does_not_become_ready_is_told_its_place_again_with_the_time_of_the_first() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    stage.apply(NAMESPACE, 2).await;
    stage.trains(NAMESPACE).await;
    let pods = stage.pods(NAMESPACE);
    let document = |name: &'static str| {
        let pods = pods.clone();
        async move {
            let pod = pods.get(name).await?;
            let text = pod.annotations().get(labels::MEMBERSHIP).cloned();
            let told = Membership::parse(&text.unwrap_or_default()).ok().flatten();
            anyhow::Ok(told.unwrap())
        }
    };
    let (ready, late) = ("digits-worker-0-0", "digits-worker-1-0");
    let before = document(late).await.unwrap();
    let mut status = running(&pods.get(late).await.unwrap());
    status["status"]["conditions"][0]["status"] = "False".into();
    status["status"]["containerStatuses"][0]["ready"] = false.into();
    pods.patch_status(late, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    let again = until("its document is written again", SOON, || async {
        let now = document(late).await?;
        Ok((now.repeats > 0).then_some(now))
    })
    .await
    .unwrap();
    let expected = Membership {
        repeats: 1,
        ..before
    };
    assert_eq!(again, expected);
    assert_eq!(document(ready).await.unwrap().repeats, 0);
    let status = stage.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0);
    operator.stop().await;
}
