//! The operator reissues the membership of a member that does not become ready.

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use roundhouse_contract::{Membership, labels};
use roundhouse_tests::cluster::until;

use crate::environment::{Environment, NAMESPACE, TIMEOUT, running};

#[tokio::test(flavor = "multi_thread")]
async fn unready_member_gets_its_membership_again() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    let pods = env.pods(NAMESPACE);
    let membership = |name: &'static str| {
        let pods = pods.clone();
        async move {
            let pod = pods.get(name).await?;
            let text = pod.annotations().get(labels::MEMBERSHIP).cloned();
            let membership = Membership::parse(&text.unwrap_or_default()).ok().flatten();
            anyhow::Ok(membership.unwrap())
        }
    };
    let (ready, late) = ("digits-worker-0-0", "digits-worker-1-0");
    let before = membership(late).await.unwrap();
    let mut status = running(&pods.get(late).await.unwrap());
    status["status"]["conditions"][0]["status"] = "False".into();
    status["status"]["containerStatuses"][0]["ready"] = false.into();
    pods.patch_status(late, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    let again = until("the membership is written again", TIMEOUT, || async {
        let now = membership(late).await?;
        Ok((now.repeats > 0).then_some(now))
    })
    .await
    .unwrap();
    let expected = Membership {
        repeats: 1,
        ..before
    };
    assert_eq!(again, expected);
    assert_eq!(membership(ready).await.unwrap().repeats, 0);
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0);
    operator.stop().await;
}
