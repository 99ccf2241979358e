//! Step 5, effects: one patch of the status if it differs, then events.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use roundhouse_api::{TrainingJob, TrainingJobStatus};
use roundhouse_planner::Plan;
use serde_json::{Map, Value, json};

use crate::controller::apply::writes::ObjectWriter;
use crate::controller::error::Error;
use crate::controller::events::queue::EventQueue;
use crate::controller::slow_writes::{SlowWrites, Write};
use crate::job::{JobKey, JobName};
use crate::memory::expectations::Written;
use crate::memory::{JobMemories, JobMemory};
use crate::metrics::jobs::Jobs;

/// The outcome of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// The status is stored, or did not differ.
    Stored,
    /// Only counts and messages differ; they are written after this time.
    Later(Duration),
    /// Another client wrote the job in the meantime.
    Conflict,
}

/// Writes the status and publishes the events.
pub struct Reporter {
    pub(super) writer: ObjectWriter,
    pub(super) slow_writes: Arc<SlowWrites>,
    pub(super) events: Arc<EventQueue>,
    pub(super) jobs: Jobs,
}

impl Reporter {
    /// Writes the status and publishes the events. A write that takes long continues beside the
    /// reconciles; its events are published when the caches show it.
    ///
    /// # Errors
    /// The API server refused the write, or did not answer, or the write continues.
    pub async fn report(
        &self,
        memories: &JobMemories,
        job: &TrainingJob,
        plan: &Plan,
    ) -> Result<Reported, Error> {
        let key = &JobKey::of(&job.metadata);
        let before = job.status.clone().unwrap_or_default();
        self.jobs.show(key, &plan.status);
        let stored = |memory: &mut JobMemory| memory.unsent_events.stored(&before);
        self.events.push(job, &memories.with(key, stored));
        if before != plan.status {
            let wait = |memory: &mut JobMemory| memory.status_delay.wait(&before, &plan.status);
            if let Some(left) = memories.with(key, wait)
                && plan.events.is_empty()
            {
                return Ok(Reported::Later(left));
            }
            if let Err(error) = self.write(key, job, &before, &plan.status).await {
                // The API server may have stored it all the same: of two tries only the second may
                // have an answer.
                memories.with(key, |memory| {
                    memory.unsent_events.keep(&plan.status, &plan.events);
                });
                let is_conflict = matches!(&error, Error::Report(error) if error.is_conflict());
                return if is_conflict {
                    Ok(Reported::Conflict)
                } else {
                    Err(error)
                };
            }
            memories.with(key, |memory| memory.unsent_events.published());
        }
        self.events.push(job, &plan.events);
        Ok(Reported::Stored)
    }

    async fn write(
        &self,
        key: &JobKey,
        job: &TrainingJob,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
    ) -> Result<(), Error> {
        let status = merge_patch(&serde_json::to_value(before)?, serde_json::to_value(after)?);
        let patch = json!({
            "metadata": {"resourceVersion": job.metadata.resource_version},
            "status": status,
        });
        let wake = JobName::of(&job.metadata);
        let (name, of_job, writer) = (wake.name.clone(), key.clone(), self.writer.clone());
        let (before, after, jobs) = (before.clone(), after.clone(), self.jobs.clone());
        let write = |deadline| {
            async move {
                writer
                    .patch_status(&of_job, (&name, &patch), deadline)
                    .await?;
                jobs.stored(&of_job, &before, &after, jiff::Timestamp::now());
                Ok(())
            }
            .boxed()
        };
        let of_status = Write {
            job: key.clone(),
            action: "Report",
            creates: false,
            object: Written::Status,
            content_version: 0,
        };
        let written = self.slow_writes.run(of_status, wake, write).await;
        written.map_err(Error::Report)
    }
}

/// The merge patch (RFC 7386) from one value to another: fields that are gone become null, at every
/// depth.
fn merge_patch(before: &Value, after: Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (before, &after) else {
        return after;
    };
    let mut patch = Map::new();
    for (key, value) in new {
        let old = old.get(key).unwrap_or(&Value::Null);
        patch.insert(key.clone(), merge_patch(old, value.clone()));
    }
    for key in old.keys() {
        patch.entry(key).or_insert(Value::Null);
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_fields_become_null() {
        let (before, after) = (json!({"a": 1, "b": 2}), json!({"b": 3}));
        assert_eq!(merge_patch(&before, after), json!({"a": null, "b": 3}));
        let (before, after) = (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"c": 2}}));
        assert_eq!(
            merge_patch(&before, after),
            json!({"a": {"b": null, "c": 2}})
        );
    }
}
