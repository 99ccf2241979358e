//! Writes of the PodGroup.

use std::sync::Arc;

use kube::api::Patch;
use roundhouse_api::Gang;
use roundhouse_contract::names;
use roundhouse_planner::PodGroup;
use serde_json::json;

use super::step::Step;
use super::writes::preconditions;
use crate::controller::context::Context;
use crate::controller::observe::version;
use crate::controller::resources::{Child, metadata};
use crate::controller::slow_writes::Answer;
use crate::job::JobKey;
use crate::memory::JobMemory;
use crate::memory::expectations::Written;
use crate::memory::repairs::Drift;
use crate::runtime::api::calls::{call_within, patch_params};
use crate::runtime::api::metadata::OfKind;
use crate::watch::pod_group_kinds::{GroupKind, coscheduling, kubernetes, volcano};

impl Child for coscheduling::PodGroup {}
impl Child for volcano::PodGroup {}
impl Child for kubernetes::PodGroup {}

/// Creates the PodGroup, or changes the one with this UID.
pub(super) async fn keep(
    step: Step<'_>,
    gang: Gang,
    group: &PodGroup,
    uid: Option<&str>,
) -> Answer {
    match gang {
        Gang::None => Ok(()),
        Gang::Coscheduling => put::<coscheduling::PodGroup>(step, group, uid).await,
        Gang::Volcano => put::<volcano::PodGroup>(step, group, uid).await,
        Gang::Kubernetes => put::<kubernetes::PodGroup>(step, group, uid).await,
    }
}

/// Deletes the PodGroup with this UID.
pub(super) async fn remove(step: Step<'_>, gang: Gang, uid: &str) -> Answer {
    let (name, what) = (names::pod_group(&step.job.identity.name), Written::PodGroup);
    let observed = preconditions(uid, None);
    let removed = |memory: &mut JobMemory| memory.repairs.group_removed();
    step.context.memory.with(step.key, removed);
    match gang {
        Gang::None => Ok(()),
        Gang::Coscheduling => {
            step.delete::<coscheduling::PodGroup>(&name, observed, what)
                .await
        }
        Gang::Volcano => {
            step.delete::<volcano::PodGroup>(&name, observed, what)
                .await
        }
        Gang::Kubernetes => {
            step.delete::<kubernetes::PodGroup>(&name, observed, what)
                .await
        }
    }
}

async fn put<K: GroupKind + Child>(step: Step<'_>, group: &PodGroup, uid: Option<&str>) -> Answer {
    let name = names::pod_group(&step.job.identity.name);
    let object = K::build(metadata(&step.job.identity, name.clone()), group);
    let Some(uid) = uid else {
        return step.create(object, Written::PodGroup).await;
    };
    let wanted = group.clone();
    let said = serde_json::to_value(&object).map_err(kube::Error::SerdeError)?;
    let patch = json!({"metadata": {"uid": uid}, "spec": said["spec"]});
    let change = |context: Arc<Context>, key: JobKey, deadline| async move {
        let groups = OfKind::namespaced::<K>(&context.client, &key.namespace);
        let (parameters, patch) = (patch_params(), Patch::Merge(&patch));
        let request = || groups.patch(&name, &parameters, &patch);
        let written = call_within(deadline, request).await?;
        // What failed was not reverted: the back-off of the job paces its next attempt.
        let at = version(written.resource_version.as_deref());
        context.memory.with(&key, |memory| {
            memory.repairs.note_group(Drift::Modified, &wanted);
            memory.expectations.wrote(Written::PodGroup, at);
        });
        Ok(())
    };
    step.change(Written::PodGroup, 0, change).await
}
