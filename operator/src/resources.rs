//! The children of a job, as objects. One builder a file; pure.

pub mod network_policy;
pub mod service;
mod volumes;
pub mod worker;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use roundhouse_api::TrainingJob;
use roundhouse_contract::labels;
use roundhouse_planner::ValidatedJob;

/// Metadata that all children share: name, labels, owner.
pub(crate) fn metadata(job: &ValidatedJob, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(job.key.namespace.clone()),
        labels: Some(labels_of(job)),
        owner_references: Some(vec![owner(job)]),
        ..ObjectMeta::default()
    }
}

/// Labels that all children bear.
pub(crate) fn labels_of(job: &ValidatedJob) -> BTreeMap<String, String> {
    [
        (labels::APP_NAME, labels::ROUNDHOUSE),
        (labels::APP_INSTANCE, &job.key.name),
        (labels::APP_PART_OF, labels::ROUNDHOUSE),
        (labels::MANAGED_BY, labels::FIELD_MANAGER),
        (labels::JOB_NAME, &job.key.name),
        (labels::JOB_UID, &job.key.uid),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// Labels that choose the pods of one job, and of no later one of the same name.
pub(crate) fn selector(job: &ValidatedJob) -> BTreeMap<String, String> {
    BTreeMap::from([(labels::JOB_UID.to_owned(), job.key.uid.clone())])
}

fn owner(job: &ValidatedJob) -> OwnerReference {
    OwnerReference {
        api_version: TrainingJob::api_version(&()).into_owned(),
        kind: TrainingJob::kind(&()).into_owned(),
        name: job.key.name.clone(),
        uid: job.key.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
