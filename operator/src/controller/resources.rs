//! Builders of a job's objects, one per file. They are pure.

pub mod network_policy;
pub mod service;
mod volumes;
pub mod worker;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use roundhouse_api::TrainingJob;
use roundhouse_contract::labels;
use roundhouse_planner::JobIdentity;

/// Metadata that all objects of a job share: name, labels, owner.
pub(crate) fn metadata(job: &JobIdentity, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(job.namespace.clone()),
        labels: Some(labels_of(job)),
        owner_references: Some(vec![owner(job)]),
        ..ObjectMeta::default()
    }
}

/// Labels of all objects of a job.
pub(crate) fn labels_of(job: &JobIdentity) -> BTreeMap<String, String> {
    [
        (labels::APP_NAME, labels::ROUNDHOUSE),
        (labels::APP_INSTANCE, &job.name),
        (labels::APP_PART_OF, labels::ROUNDHOUSE),
        (labels::MANAGED_BY, labels::FIELD_MANAGER),
        (labels::JOB_NAME, &job.name),
        (labels::JOB_UID, &job.uid),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// Labels that select the pods of one job, and not those of a later job of the same name.
pub(crate) fn selector(job: &JobIdentity) -> BTreeMap<String, String> {
    BTreeMap::from([(labels::JOB_UID.to_owned(), job.uid.clone())])
}

/// The job that controls an object, if one does.
pub(crate) fn job_of(meta: &ObjectMeta) -> Option<JobIdentity> {
    let mut owners = meta.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some(JobIdentity {
        namespace: meta.namespace.clone()?,
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    })
}

/// Whether an object still has the labels that it was built with. It may have others as well.
pub(crate) fn has_labels(live: &ObjectMeta, built: &ObjectMeta) -> bool {
    let mut wanted = built.labels.iter().flatten();
    wanted.all(|(key, value)| live.labels.as_ref().and_then(|all| all.get(key)) == Some(value))
}

fn owner(job: &JobIdentity) -> OwnerReference {
    OwnerReference {
        api_version: TrainingJob::api_version(&()).into_owned(),
        kind: TrainingJob::kind(&()).into_owned(),
        name: job.name.clone(),
        uid: job.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
