//! Events that wait to be published. Tasks beside the reconciles publish them: with a slow
//! admission webhook each event takes seconds.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use roundhouse_api::TrainingJob;
use roundhouse_planner::Event;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use super::Events;
use crate::metrics::work::Work;

/// Number of publishers: tasks that publish events. One publisher has all events of a job and
/// publishes them in their order.
const NUM_PUBLISHERS: usize = 32;
/// Number of publishers that the jobs of one namespace use, so that a slow webhook of a namespace
/// delays the events of few other namespaces.
const PUBLISHERS_PER_NAMESPACE: u64 = 4;
/// Most events that wait for one publisher. If there are more, the oldest are dropped.
const MAX_WAITING: usize = 256;

/// The queue of events.
pub struct EventQueue {
    publishers: [broadcast::Sender<Waiting>; NUM_PUBLISHERS],
    /// Events that are not published yet.
    num_left: watch::Sender<u64>,
}

#[derive(Clone, Debug)]
struct Waiting {
    job: ObjectReference,
    event: Event,
    at: Timestamp,
}

impl Default for EventQueue {
    fn default() -> Self {
        Self {
            publishers: std::array::from_fn(|_| broadcast::Sender::new(MAX_WAITING)),
            num_left: watch::Sender::new(0),
        }
    }
}

impl EventQueue {
    /// Adds events about a job to the queue.
    pub fn push(&self, job: &TrainingJob, events: &[Event]) {
        let publisher = publisher_of(job);
        for event in events {
            let waiting = Waiting {
                job: job.object_ref(&()),
                event: event.clone(),
                at: Timestamp::now(),
            };
            // The counter comes first: the event may be published at once.
            self.num_left.send_modify(|left| *left += 1);
            // Without a task that publishes them, events are lost.
            if self.publishers[publisher].send(waiting).is_err() {
                self.mark_done(1);
            }
        }
    }

    /// Waits until all events are published, but no longer than `at_most`.
    pub async fn drain(&self, at_most: Duration) {
        let mut left = self.num_left.subscribe();
        let published = left.wait_for(|left| *left == 0);
        let _ = tokio::time::timeout(at_most, published).await;
    }

    fn mark_done(&self, events: u64) {
        let less = |left: &mut u64| *left = left.saturating_sub(events);
        self.num_left.send_modify(less);
    }
}

fn publisher_of(job: &TrainingJob) -> usize {
    let hash = |of: &Option<String>| {
        let mut hasher = DefaultHasher::new();
        of.hash(&mut hasher);
        hasher.finish()
    };
    let first = hash(&job.metadata.namespace) % NUM_PUBLISHERS as u64;
    let offset = hash(&job.metadata.uid) % PUBLISHERS_PER_NAMESPACE;
    usize::try_from((first + offset) % NUM_PUBLISHERS as u64).unwrap_or_default()
}

/// Publishes events until the operator stops. Events that were added before this call are lost.
pub(crate) fn publish_all(
    queue: Arc<EventQueue>,
    events: Events,
    work: Work,
) -> impl Future<Output = ()> {
    let publishers = queue.publishers.iter();
    let received: Vec<_> = publishers.map(broadcast::Sender::subscribe).collect();
    async move {
        join_all(
            received
                .into_iter()
                .map(|waiting| publish(waiting, &queue, &events, &work)),
        )
        .await;
    }
}

async fn publish(
    mut waiting: broadcast::Receiver<Waiting>,
    queue: &EventQueue,
    events: &Events,
    work: &Work,
) {
    loop {
        let over = match waiting.recv().await {
            Ok(Waiting { job, event, at }) => {
                // Best effort: no decision depends on an event.
                if let Err(error) = events.publish(&job, &event, at).await {
                    let (namespace, name) = (job.namespace, job.name);
                    let reason = &event.reason;
                    tracing::warn!(%error, namespace, job = name, reason, "the API server did not take an event");
                }
                1
            }
            Err(RecvError::Lagged(lost)) => {
                work.events_dropped(lost);
                tracing::warn!(
                    lost,
                    "events were dropped: the API server takes them too slowly"
                );
                lost
            }
            Err(RecvError::Closed) => return,
        };
        queue.mark_done(over);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use roundhouse_planner::EventType;
    use roundhouse_planner::testing::raw_job;

    use super::*;

    fn events(count: usize) -> Vec<Event> {
        let event = |at| Event {
            kind: EventType::Normal,
            reason: "It".to_owned(),
            message: format!("{at}"),
        };
        (0..count).map(event).collect()
    }

    #[tokio::test]
    async fn events_of_a_job_keep_their_order_and_oldest_are_dropped() {
        let queue = EventQueue::default();
        let mut publishers = queue
            .publishers
            .each_ref()
            .map(broadcast::Sender::subscribe);
        queue.push(&raw_job(1), &events(MAX_WAITING + 2));
        let publisher = publishers.iter_mut().find(|it| !it.is_empty()).unwrap();
        assert_eq!(publisher.recv().await.unwrap_err(), RecvError::Lagged(2));
        queue.mark_done(2);
        for at in 2..MAX_WAITING + 2 {
            let waiting = publisher.recv().await.unwrap();
            assert_eq!(waiting.event.message, format!("{at}"));
            queue.mark_done(1);
        }
        queue.drain(Duration::MAX).await;
    }

    #[test]
    fn namespace_uses_few_publishers_and_each_job_one() {
        let publishers = |namespace: &str| {
            let publisher = |uid: u32| {
                let mut job = raw_job(1);
                job.metadata.namespace = Some(namespace.to_owned());
                job.metadata.uid = Some(uid.to_string());
                publisher_of(&job)
            };
            (0..100).map(publisher).collect::<BTreeSet<_>>()
        };
        assert_eq!(publishers("ml").len() as u64, PUBLISHERS_PER_NAMESPACE);
        let all: BTreeSet<_> = (0..100)
            .flat_map(|at| publishers(&format!("n{at}")))
            .collect();
        assert_eq!(all.len(), NUM_PUBLISHERS);
    }

    #[tokio::test]
    async fn events_without_publisher_are_not_awaited() {
        let queue = EventQueue::default();
        queue.push(&raw_job(1), &events(1));
        queue.drain(Duration::MAX).await;
    }
}
