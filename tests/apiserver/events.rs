//! The events of a job, which `kubectl describe` shows.

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event as FullEvent;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Resource, ResourceExt};
use roundhouse_operator::controller::events::Events;
use roundhouse_planner::{Event, EventType};
use roundhouse_tests::cluster::until;

use crate::environment::{Environment, NAMESPACE, TIMEOUT};

/// All events that were published in the namespace.
pub(crate) async fn published(env: &Environment) -> Vec<FullEvent> {
    let events: Api<FullEvent> = Api::namespaced(env.client.clone(), NAMESPACE);
    events.list(&ListParams::default()).await.unwrap().items
}

fn failed(message: &str) -> Event {
    Event {
        kind: EventType::Warning,
        reason: "Incident".to_owned(),
        message: message.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_notes_share_one_event_with_a_count() {
    let env = Environment::new().await;
    let job = env.apply(NAMESPACE, 1).await.object_ref(&());
    let events = Events::new(env.client.clone(), None);
    for message in [
        "worker 0 ran out of memory",
        "worker 3 stalled",
        "worker 3 stalled",
    ] {
        let now = Timestamp::now();
        events.publish(&job, &failed(message), now).await.unwrap();
    }
    let mut all: Vec<_> = published(&env)
        .await
        .into_iter()
        .map(|event| (event.note.unwrap(), event.series.map(|series| series.count)))
        .collect();
    all.sort();
    let expected = [
        ("worker 0 ran out of memory", None),
        ("worker 3 stalled", Some(2)),
    ];
    assert_eq!(all, expected.map(|(note, count)| (note.to_owned(), count)));

    // The API server deletes events after an hour.
    let api: Api<FullEvent> = Api::namespaced(env.client.clone(), NAMESPACE);
    for event in published(&env).await {
        api.delete(&event.name_any(), &DeleteParams::default())
            .await
            .unwrap();
    }
    let again = failed("worker 3 stalled");
    events
        .publish(&job, &again, Timestamp::now())
        .await
        .unwrap();
    assert_eq!(published(&env).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_status_response_publishes_one_event() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    operator.network.drop_response_to("/status");
    env.apply(NAMESPACE, 1).await;
    let num_published = || async {
        let all = published(&env).await;
        let accepted = all
            .iter()
            .filter(|e| e.reason.as_deref() == Some("Accepted"));
        accepted.count()
    };
    until("the event is published", TIMEOUT, || async {
        Ok((num_published().await > 0).then_some(()))
    })
    .await
    .unwrap();
    assert!(operator.network.has_dropped_response());
    env.run_until_training(NAMESPACE).await;
    assert_eq!(num_published().await, 1);
    operator.stop().await;
}
