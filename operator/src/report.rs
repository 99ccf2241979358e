//! Step 5, effects: one patch of the status if it differs, then events.

use std::time::Duration;

use kube::Api;
use kube::api::Patch;
use roundhouse_api::{TrainingJob, TrainingJobStatus};
use roundhouse_planner::{Event, Plan};
use serde_json::{Map, Value, json};

use crate::cache::Job;
use crate::calls::{self, call};
use crate::context::Context;
use crate::error::Error;
use crate::expectations::Written;
use crate::observe::version;
use crate::unreadable::Guarded;

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

/// Writes the status and tells the events.
///
/// # Errors
/// The write was refused or got no answer.
pub async fn report(
    context: &Context,
    key: &Job,
    job: &TrainingJob,
    plan: &Plan,
) -> Result<Reported, Error> {
    let before = job.status.clone().unwrap_or_default();
    context.metrics.jobs.show(key, &plan.status);
    tell(context, job, &context.untold.stored(key, &before)).await;
    if before != plan.status {
        if let Some(left) = context.settling.wait(key, &before, &plan.status)
            && plan.events.is_empty()
        {
            return Ok(Reported::Later(left));
        }
        match write(context, key, job, &before, &plan.status).await {
            Ok(()) => context.untold.told(key),
            Err(error) => {
                // It may be stored all the same: of two tries only the second may have an answer.
                context.untold.keep(key, &plan.status, &plan.events);
                let looks_again = matches!(&error, Error::Report(error) if error.is_look_again());
                return if looks_again {
                    Ok(Reported::LookAgain)
                } else {
                    Err(error)
                };
            }
        }
        let now = jiff::Timestamp::now();
        context.metrics.jobs.stored(key, &before, &plan.status, now);
    }
    tell(context, job, &plan.events).await;
    Ok(Reported::Stored)
}

async fn write(
    context: &Context,
    key: &Job,
    job: &TrainingJob,
    before: &TrainingJobStatus,
    after: &TrainingJobStatus,
) -> Result<(), Error> {
    let status = merge_patch(&serde_json::to_value(before)?, serde_json::to_value(after)?);
    let patch = json!({
        "metadata": {"resourceVersion": job.metadata.resource_version},
        "status": status,
    });
    // The answer may have parts that cannot be read.
    let api: Api<Guarded> = Api::namespaced(context.client.clone(), &key.0);
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let (parameters, patch) = (calls::patch_params(), Patch::Merge(&patch));
    let written = call(|| api.patch_status(name, &parameters, &patch)).await;
    let written = written.map_err(Error::Report)?;
    let at = version(written.job.metadata.resource_version.as_deref());
    context.expectations.wrote(key, Written::Status, at);
    Ok(())
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

/// Best effort: an event that is lost changes nothing.
async fn tell(context: &Context, job: &TrainingJob, events: &[Event]) {
    for event in events {
        if let Err(error) = context.events.publish(job, event).await {
            let reason = &event.reason;
            tracing::warn!(%error, reason, "an event was not taken");
        }
    }
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
