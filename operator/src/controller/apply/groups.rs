//! Writes of PodGroups.

use roundhouse_api::Gang;
use roundhouse_contract::names;
use roundhouse_planner::PodGroup;
use serde_json::json;

use super::step::Step;
use super::writes::{ObjectWriter, preconditions};
use crate::controller::resources::metadata;
use crate::controller::slow_writes::Answer;
use crate::job::JobKey;
use crate::memory::expectations::Written;
use crate::watch::pod_group_kinds::{GroupKind, coscheduling, kubernetes, volcano};

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
    step.applier.writer.note_group_removed(step.key);
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

async fn put<K: GroupKind>(step: Step<'_>, group: &PodGroup, uid: Option<&str>) -> Answer {
    let name = names::pod_group(&step.job.identity.name);
    let object = K::build(metadata(&step.job.identity, name.clone()), group);
    let Some(uid) = uid else {
        return step.create(object, Written::PodGroup).await;
    };
    let wanted = group.clone();
    let said = serde_json::to_value(&object).map_err(kube::Error::SerdeError)?;
    let patch = json!({"metadata": {"uid": uid}, "spec": said["spec"]});
    let change = |writer: ObjectWriter, key: JobKey, deadline| async move {
        writer
            .patch_group::<K>(&key, (&name, &patch), &wanted, deadline)
            .await
    };
    step.change(Written::PodGroup, 0, change).await
}
