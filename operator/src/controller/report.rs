//! Step 5, effects: one patch of the status if it differs, then events.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kube::Api;
use kube::api::Patch;
use roundhouse_api::{TrainingJob, TrainingJobStatus};
use roundhouse_planner::Plan;
use serde_json::{Map, Value, json};

use crate::controller::context::Context;
use crate::controller::error::Error;
use crate::controller::observe::version;
use crate::controller::slow_writes::Write;
use crate::job::{JobKey, JobName};
use crate::memory::JobMemory;
use crate::memory::expectations::Written;
use crate::runtime::api::calls::{call_within, patch_params};
use roundhouse_api::unreadable::Guarded;

/// What came of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// The status is stored, or was already.
    Stored,
    /// It only describes, and is written after this time.
    Later(Duration),
    /// Somebody else wrote: look again.
    LookAgain,
}

/// Writes the status and tells the events. A write that takes long goes on beside the reconciles; its events are told when the
/// caches show it.
///
/// # Errors
/// The write was refused, got no answer, or continues.
pub async fn report(
    context: &Arc<Context>,
    key: &JobKey,
    job: &TrainingJob,
    plan: &Plan,
) -> Result<Reported, Error> {
    let before = job.status.clone().unwrap_or_default();
    context.metrics.jobs.show(key, &plan.status);
    let confirmed = context
        .memory
        .with(key, |memory| memory.unsent_events.stored(&before));
    context.event_queue.push(job, &confirmed);
    if before != plan.status {
        let wait = |memory: &mut JobMemory| memory.status_delay.wait(&before, &plan.status);
        if let Some(left) = context.memory.with(key, wait)
            && plan.events.is_empty()
        {
            return Ok(Reported::Later(left));
        }
        match write(context, key, job, &before, &plan.status).await {
            Ok(()) => context
                .memory
                .with(key, |memory| memory.unsent_events.published()),
            Err(error) => {
                // It may be stored all the same: of two tries only the second may have an answer.
                context.memory.with(key, |memory| {
                    memory.unsent_events.keep(&plan.status, &plan.events);
                });
                let looks_again = matches!(&error, Error::Report(error) if error.is_look_again());
                return if looks_again {
                    Ok(Reported::LookAgain)
                } else {
                    Err(error)
                };
            }
        }
    }
    context.event_queue.push(job, &plan.events);
    Ok(Reported::Stored)
}

async fn write(
    context: &Arc<Context>,
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
    let name = job.metadata.name.clone().unwrap_or_default();
    let wake = JobName::new(&key.namespace, &name);
    let (beside, key_beside) = (Arc::clone(context), key.clone());
    let (before, after) = (before.clone(), after.clone());
    let write = |deadline| {
        async move {
            // The answer may have parts that cannot be read.
            let api: Api<Guarded> = Api::namespaced(beside.client.clone(), &key_beside.namespace);
            let (parameters, patch) = (patch_params(), Patch::Merge(&patch));
            let request = || api.patch_status(&name, &parameters, &patch);
            let written = call_within(deadline, request).await?;
            let at = version(written.job.metadata.resource_version.as_deref());
            beside.memory.with(&key_beside, |memory| {
                memory.expectations.wrote(Written::Status, at);
            });
            let now = jiff::Timestamp::now();
            beside
                .metrics
                .jobs
                .stored(&key_beside, &before, &after, now);
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
    let written = context.slow_writes.run(of_status, wake, write).await;
    written.map_err(Error::Report)
}

/// RFC 7386: what is no more must be said as null, at every depth.
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
    fn what_is_no_more_is_said_as_null() {
        let (before, after) = (json!({"a": 1, "b": 2}), json!({"b": 3}));
        assert_eq!(merge_patch(&before, after), json!({"a": null, "b": 3}));
        let (before, after) = (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"c": 2}}));
        assert_eq!(
            merge_patch(&before, after),
            json!({"a": {"b": null, "c": 2}})
        );
    }
}
