//! Writes of the PodGroup.

use std::sync::Arc;

use kube::Api;
use kube::api::Patch;
use roundhouse_api::Gang;
use roundhouse_contract::names;
use roundhouse_planner::{Action, PodGroup, ValidatedJob};
use serde_json::json;

use super::{change, make};
use crate::cache::Job;
use crate::calls::{call_within, patch_params};
use crate::context::Context;
use crate::error::CallError;
use crate::expectations::Written;
use crate::gangs::{GroupKind, coscheduling, volcano};
use crate::observe::version;
use crate::resources::{Child, metadata};

impl Child for coscheduling::PodGroup {}
impl Child for volcano::PodGroup {}

/// Creates the PodGroup, or changes the one with this UID.
pub(super) async fn keep(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    action: &Action,
    (gang, group, uid): (Gang, &PodGroup, Option<&str>),
) -> Result<(), CallError> {
    match gang {
        Gang::None => Ok(()),
        Gang::Coscheduling => {
            let group = build::<coscheduling::PodGroup>(job, group);
            put(context, key, job, action, group, uid).await
        }
        Gang::Volcano => {
            let group = build::<volcano::PodGroup>(job, group);
            put(context, key, job, action, group, uid).await
        }
    }
}

/// Deletes the PodGroup with this UID.
pub(super) async fn remove(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    action: &Action,
    (gang, uid): (Gang, &str),
) -> Result<(), CallError> {
    let name = names::pod_group(&job.key.name);
    let (which, what) = ((&*name, uid), Written::PodGroup);
    match gang {
        Gang::None => Ok(()),
        Gang::Coscheduling => {
            super::remove::<coscheduling::PodGroup>(context, key, job, action, which, what).await
        }
        Gang::Volcano => {
            super::remove::<volcano::PodGroup>(context, key, job, action, which, what).await
        }
    }
}

fn build<K: GroupKind>(job: &ValidatedJob, group: &PodGroup) -> K {
    K::build(metadata(&job.key, names::pod_group(&job.key.name)), group)
}

async fn put<K: GroupKind + Child>(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    action: &Action,
    object: K,
    uid: Option<&str>,
) -> Result<(), CallError> {
    let Some(uid) = uid else {
        return make(context, key, job, action, object, Written::PodGroup).await;
    };
    let said = serde_json::to_value(&object).map_err(kube::Error::SerdeError)?;
    let patch = json!({"metadata": {"uid": uid}, "spec": said["spec"]});
    let name = names::pod_group(&job.key.name);
    let write = |context: Arc<Context>, key: Job, deadline| async move {
        let groups: Api<K> = Api::namespaced(context.client.clone(), &key.0);
        let (parameters, patch) = (patch_params(), Patch::Merge(&patch));
        let request = || groups.patch_metadata(&name, &parameters, &patch);
        let written = call_within(deadline, request).await?;
        let at = version(written.metadata.resource_version.as_deref());
        context.expectations.wrote(&key, Written::PodGroup, at);
        Ok(())
    };
    change(context, key, job, action, (&Written::PodGroup, 0), write).await
}
