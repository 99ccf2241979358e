//! Full objects as they arrive, reduced to what a plan needs: 50,000 whole pods are gigabytes.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod as FullPod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use roundhouse_contract::{Membership, TerminationMessage, labels};
use roundhouse_planner::{Container, Pod, PodPhase, Termination, Waiting};

/// Who controls an object, and which job its labels name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// UID of the controller, if there is one.
    pub controller: Option<String>,
    /// Name of the job, by label.
    pub job_name: String,
    /// UID of the job, by label.
    pub job_uid: String,
}

/// Reads the identity of an object.
#[must_use]
pub fn identity(meta: &ObjectMeta) -> Identity {
    let label = |key: &str| meta.labels.as_ref().and_then(|all| all.get(key)).cloned();
    let owners = meta.owner_references.iter().flatten();
    Identity {
        controller: owners
            .filter(|o| o.controller == Some(true))
            .map(|o| o.uid.clone())
            .next(),
        job_name: label(labels::JOB_NAME).unwrap_or_default(),
        job_uid: label(labels::JOB_UID).unwrap_or_default(),
    }
}

/// Reduces a pod.
#[must_use]
pub fn pod(full: &FullPod) -> Pod {
    let FullPod {
        metadata,
        spec,
        status,
    } = full;
    let number = |key: &str| metadata.labels.as_ref()?.get(key)?.parse::<u32>().ok();
    let identity = identity(metadata);
    let condition = |kind: &str| {
        status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten())
            .find(|c| c.type_ == kind)
    };
    let phase = match status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Running") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        Some(_) | None => PodPhase::Pending,
    };
    let text = |reason: &Option<String>, message: &Option<String>| Waiting {
        reason: reason.clone().unwrap_or_default(),
        message: message.clone().unwrap_or_default(),
    };
    Pod {
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        ours: !identity.job_uid.is_empty() && identity.controller == Some(identity.job_uid),
        index: number(labels::WORKER_INDEX),
        attempt: number(labels::ATTEMPT).unwrap_or(0),
        deleting: metadata.deletion_timestamp.is_some(),
        created_at: metadata.creation_timestamp.as_ref().map(|time| time.0),
        phase,
        ready: condition("Ready").is_some_and(|condition| condition.status == "True"),
        ip: status
            .as_ref()
            .and_then(|status| status.pod_ip.clone())
            .filter(|ip| !ip.is_empty()),
        node: spec.as_ref().and_then(|spec| spec.node_name.clone()),
        unschedulable: condition("PodScheduled")
            .filter(|condition| condition.status == "False")
            .map(|condition| condition.message.clone().unwrap_or_default()),
        failed: status
            .as_ref()
            .filter(|_| phase == PodPhase::Failed)
            .map(|status| text(&status.reason, &status.message)),
        container: status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten())
            .find(|container| container.name == labels::TRAINER_CONTAINER)
            .map(container)
            .unwrap_or_default(),
        membership: metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(labels::MEMBERSHIP))
            .and_then(|document| Membership::parse(document).ok().flatten()),
    }
}

fn container(status: &ContainerStatus) -> Container {
    let restarts = u32::try_from(status.restart_count).unwrap_or(0);
    let now = status
        .state
        .as_ref()
        .and_then(|state| termination(state, restarts));
    let before = status
        .last_state
        .as_ref()
        .and_then(|state| termination(state, restarts.saturating_sub(1)));
    let waiting = status
        .state
        .as_ref()
        .and_then(|state| state.waiting.as_ref());
    Container {
        restarts,
        waiting: waiting.map(|waiting| Waiting {
            reason: waiting.reason.clone().unwrap_or_default(),
            message: waiting.message.clone().unwrap_or_default(),
        }),
        termination: now.or(before),
    }
}

fn termination(state: &ContainerState, restarts: u32) -> Option<Termination> {
    let ended = state.terminated.as_ref()?;
    Some(Termination {
        restarts,
        exit_code: ended.exit_code,
        reason: ended.reason.clone().unwrap_or_default(),
        message: ended.message.as_deref().and_then(TerminationMessage::parse),
        finished_at: ended
            .finished_at
            .as_ref()
            .map(|time| -> Timestamp { time.0 }),
    })
}
