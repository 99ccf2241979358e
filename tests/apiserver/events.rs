//! What `kubectl describe` shows of a job.

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event as FullEvent;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Resource, ResourceExt};
use roundhouse_operator::controller::events::Events;
use roundhouse_planner::{Event, EventType};
use roundhouse_tests::cluster::until;

use crate::stage::{NAMESPACE, SOON, Stage};

/// All events of the namespace.
pub(crate) async fn told(stage: &Stage) -> Vec<FullEvent> {
    let events: Api<FullEvent> = Api::namespaced(stage.client.clone(), NAMESPACE);
    events.list(&ListParams::default()).await.unwrap().items
}

fn failed(words: &str) -> Event {
    Event {
        kind: EventType::Warning,
        reason: "Incident".to_owned(),
        message: words.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_note_is_an_event_of_its_own_and_the_same_one_again_counts_up() {
    let stage = Stage::new().await;
    let job = stage.apply(NAMESPACE, 1).await.object_ref(&());
    let events = Events::new(stage.client.clone(), None);
    for words in [
        "worker 0 ran out of memory",
        "worker 3 stalled",
        "worker 3 stalled",
    ] {
        let now = Timestamp::now();
        events.publish(&job, &failed(words), now).await.unwrap();
    }
    let mut all: Vec<_> = told(&stage)
        .await
        .into_iter()
        .map(|event| (event.note.unwrap(), event.series.map(|series| series.count)))
        .collect();
    all.sort();
    let expected = [
        ("worker 0 ran out of memory", None),
        ("worker 3 stalled", Some(2)),
    ];
    assert_eq!(
        all,
        expected.map(|(words, count)| (words.to_owned(), count))
    );

    // The API server forgets events after an hour.
    let api: Api<FullEvent> = Api::namespaced(stage.client.clone(), NAMESPACE);
    for event in told(&stage).await {
        api.delete(&event.name_any(), &DeleteParams::default())
            .await
            .unwrap();
    }
    let again = failed("worker 3 stalled");
    events
        .publish(&job, &again, Timestamp::now())
        .await
        .unwrap();
    assert_eq!(told(&stage).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_a_status_whose_write_got_no_answer_is_told_once() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    operator.network.lose_an_answer("/status");
    stage.apply(NAMESPACE, 1).await;
    let num_told = || async {
        let all = told(&stage).await;
        let accepted = all
            .iter()
            .filter(|e| e.reason.as_deref() == Some("Accepted"));
        accepted.count()
    };
    until("it is told", SOON, || async {
        Ok((num_told().await > 0).then_some(()))
    })
    .await
    .unwrap();
    assert!(operator.network.has_lost_one());
    stage.trains(NAMESPACE).await;
    assert_eq!(num_told().await, 1);
    operator.stop().await;
}
