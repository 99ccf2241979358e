//! Publishes the events that `kubectl describe` shows. Each note is an event of its own: two
//! workers that fail for one reason have different messages. A repeated event increments the count
//! of the first one, while that is remembered here.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event as FullEvent, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::Patch;
use kube::{Api, Client};
use roundhouse_contract::labels;
use roundhouse_planner::{Event, EventType};
use serde_json::json;

use crate::runtime::api::calls::{call, patch_params, post_params};
use crate::runtime::api::error::CallError;

pub(crate) mod queue;

/// Longest note of an event, in bytes.
const MAX_NOTE_BYTES: usize = 1_000;
/// After this time without a repetition, the same event is a new one.
const SERIES_END: Duration = Duration::from_mins(10);

/// The client that publishes events, and the events that were published.
pub struct Events {
    client: Client,
    instance: String,
    published: Mutex<HashMap<EventKey, Series>>,
}

/// The fields that make two events the same.
#[derive(Clone, PartialEq, Eq, Hash)]
struct EventKey {
    job_uid: String,
    kind: &'static str,
    reason: String,
    note: String,
}

#[derive(Clone)]
struct Series {
    name: String,
    count: i32,
    last: Instant,
}

impl Events {
    /// Publishes through this client. `instance`: name of the operator's pod.
    #[must_use]
    pub fn new(client: Client, instance: Option<String>) -> Self {
        Self {
            client,
            instance: instance.unwrap_or_else(|| labels::FIELD_MANAGER.to_owned()),
            published: Mutex::default(),
        }
    }

    /// Publishes an event about a job. `at`: when the event was decided.
    ///
    /// # Errors
    /// The API server refused the event, or did not answer.
    pub async fn publish(
        &self,
        job: &ObjectReference,
        event: &Event,
        at: Timestamp,
    ) -> Result<(), CallError> {
        let Event {
            kind,
            reason,
            message,
        } = event;
        let end = message.floor_char_boundary(MAX_NOTE_BYTES);
        let key = EventKey {
            job_uid: job.uid.clone().unwrap_or_default(),
            kind: match kind {
                EventType::Normal => "Normal",
                EventType::Warning => "Warning",
            },
            reason: reason.clone(),
            note: message[..end].to_owned(),
        };
        let namespace = job.namespace.as_deref().unwrap_or_default();
        let events: Api<FullEvent> = Api::namespaced(self.client.clone(), namespace);
        let series = match self.again(&key) {
            Some(series) if count_up(&events, &series, at).await? => series,
            _ => self.begin(&events, job, &key, at).await?,
        };
        self.lock().insert(key, series);
        Ok(())
    }

    /// The series of an event that was published before, with the next count.
    fn again(&self, key: &EventKey) -> Option<Series> {
        let mut all = self.lock();
        all.retain(|_, series| series.last.elapsed() < SERIES_END);
        let Series { name, count, .. } = all.get(key)?.clone();
        Some(Series {
            name,
            count: count.saturating_add(1),
            last: Instant::now(),
        })
    }

    async fn begin(
        &self,
        events: &Api<FullEvent>,
        job: &ObjectReference,
        key: &EventKey,
        at: Timestamp,
    ) -> Result<Series, CallError> {
        let job_name = job.name.as_deref().unwrap_or_default();
        let name = format!("{job_name}.{:x}", at.as_nanosecond());
        let event = FullEvent {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: job.namespace.clone(),
                ..ObjectMeta::default()
            },
            action: Some("Reconcile".to_owned()),
            event_time: Some(MicroTime(at)),
            note: Some(key.note.clone()),
            reason: Some(key.reason.clone()),
            regarding: Some(job.clone()),
            reporting_controller: Some(labels::FIELD_MANAGER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(key.kind.to_owned()),
            ..FullEvent::default()
        };
        let parameters = post_params();
        match call(|| events.create(&parameters, &event)).await {
            Ok(_) => {}
            // The event is ours: the answer to an earlier try was lost.
            Err(error) if error.code() == Some(409) => {}
            Err(error) => return Err(error),
        }
        Ok(Series {
            name,
            count: 1,
            last: Instant::now(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<EventKey, Series>> {
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns `false` if the event is gone: the API server keeps events for an hour.
async fn count_up(
    events: &Api<FullEvent>,
    series: &Series,
    at: Timestamp,
) -> Result<bool, CallError> {
    let series_of_event = EventSeries {
        count: series.count,
        last_observed_time: MicroTime(at),
    };
    let (parameters, patch) = (patch_params(), json!({"series": series_of_event}));
    let patch = Patch::Merge(&patch);
    match call(|| events.patch(&series.name, &parameters, &patch)).await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(404) => Ok(false),
        Err(error) => Err(error),
    }
}
