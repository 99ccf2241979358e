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

/// Creates the PodGroup of the job's gang with this number, or changes the one with this UID.
pub(super) async fn keep(
    step: Step<'_>,
    (gang, number): (Gang, u32),
    group: &PodGroup,
    uid: Option<&str>,
) -> Answer {
    match gang {
        Gang::None => Ok(()),
        Gang::Coscheduling => put::<coscheduling::PodGroup>(step, number, group, uid).await,
        Gang::Volcano => put::<volcano::PodGroup>(step, number, group, uid).await,
        Gang::Kubernetes => put::<kubernetes::PodGroup>(step, number, group, uid).await,
    }
}

/// Deletes the PodGroup of the job's gang with this number and UID.
pub(super) async fn remove(step: Step<'_>, gang: Gang, number: u32, uid: &str) -> Answer {
    let name = names::pod_group(&step.job.identity.name, number);
    let what = Written::PodGroup(number);
    let observed = preconditions(uid, None);
    step.applier.writer.note_group_removed(step.key, number);
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

async fn put<K: GroupKind>(
    step: Step<'_>,
    number: u32,
    group: &PodGroup,
    uid: Option<&str>,
) -> Answer {
    let name = names::pod_group(&step.job.identity.name, number);
    let what = Written::PodGroup(number);
    let object = K::build(metadata(&step.job.identity, name.clone()), group);
    let Some(uid) = uid else {
        return step.create(object, what).await;
    };
    let wanted = group.clone();
    let said = serde_json::to_value(&object).map_err(kube::Error::SerdeError)?;
    let patch = json!({"metadata": {"uid": uid}, "spec": said["spec"]});
    let change = |writer: ObjectWriter, key: JobKey, deadline| async move {
        writer
            .patch_group::<K>(&key, (&name, &patch), (number, &wanted), deadline)
            .await
    };
    step.change(what, 0, change).await
}
