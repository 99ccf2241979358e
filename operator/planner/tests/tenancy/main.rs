//! What jobs may use beyond themselves: refused by default, allowed by the administrator's policy.
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod fields;
mod limits;
mod volumes;

use roundhouse_planner::tenancy::Limits;
use roundhouse_planner::testing::raw_job;
use roundhouse_planner::{ValidatedJob, validate};
use serde_json::{Value, json};

/// A job with this pod template.
pub(crate) fn job(template: Value) -> ValidatedJob {
    let mut job = raw_job(2);
    job.spec.workers.template = Some(serde_json::from_value(template).unwrap());
    validate(&job).unwrap()
}

pub(crate) fn pod(spec: Value) -> ValidatedJob {
    job(json!({ "spec": spec }))
}

pub(crate) fn container(fields: Value) -> ValidatedJob {
    let mut container = json!({"name": "trainer"});
    for (key, value) in fields.as_object().unwrap() {
        container[key] = value.clone();
    }
    pod(json!({ "containers": [container] }))
}

pub(crate) fn security(context: Value) -> ValidatedJob {
    container(json!({ "securityContext": context }))
}

pub(crate) fn volume(source: Value) -> ValidatedJob {
    let mut volume = json!({"name": "v"});
    for (key, value) in source.as_object().unwrap() {
        volume[key] = value.clone();
    }
    pod(json!({"containers": [], "volumes": [volume]}))
}

/// Limits with these values of the key `allow`.
pub(crate) fn allow(values: Value) -> Limits {
    serde_json::from_value(json!({ "allow": values })).unwrap()
}

/// A job, the path of the refused field, its value, and the policy values that allow it.
pub(crate) type Case = (ValidatedJob, &'static str, &'static str, Value);
