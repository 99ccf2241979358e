//! Reduces the objects of a watch to what a plan needs: 50,000 whole pods take gigabytes.

use k8s_openapi::api::core::v1::{Pod as FullPod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use roundhouse_contract::MembershipError;
use roundhouse_contract::{BuiltFrom, CopyPair, Membership, ReplicaPlace, earlier, gang, labels};
use roundhouse_planner::kubelet::runs;
use roundhouse_planner::{Pod, PodPhase};

use self::containers::{container, containers, held_up, initializing, text};

pub mod bounded;
mod containers;
pub(crate) mod watched;

/// Conditions that every pod has; the cache does not keep them.
const COMMON_CONDITIONS: [&str; 5] = [
    "ContainersReady",
    "Initialized",
    "PodReadyToStartContainers",
    "PodScheduled",
    "Ready",
];

/// The annotation in which `kubectl apply` keeps the object as it was applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The controller of an object, and the job that its labels name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// UID of the controller, if there is one.
    pub controller: Option<String>,
    /// Name of the job, by label.
    pub job_name: String,
    /// UID of the job, by label.
    pub job_uid: String,
}

/// A Service or a NetworkPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedObject {
    /// UID of the controller, if there is one.
    pub controller: Option<String>,
    /// Whether the object is as the operator built it for the controller.
    pub is_as_built: bool,
}

/// Removes from a job the metadata that is for other clients: more than half of a large one.
pub fn job(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(LAST_APPLIED);
    }
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

/// Whether an object is a child of the job that the watches show: the job controls it, and its
/// labels name the job.
#[must_use]
pub fn is_child(meta: &ObjectMeta, job_uid: &str) -> bool {
    let Identity {
        controller,
        job_name: _,
        job_uid: labelled,
    } = identity(meta);
    let manager = meta
        .labels
        .as_ref()
        .and_then(|all| all.get(labels::MANAGED_BY));
    controller.as_deref() == Some(job_uid)
        && labelled == job_uid
        && manager.is_some_and(|manager| manager == labels::FIELD_MANAGER)
}

/// Reduces a pod to what a plan needs.
#[must_use]
pub fn pod(full: &FullPod) -> Pod {
    let FullPod {
        metadata,
        spec,
        status,
    } = full;
    let number = |key: &str| metadata.labels.as_ref()?.get(key)?.parse::<u32>().ok();
    let identity = identity(metadata);
    let (membership, newer_protocol) = place(metadata);
    let status = status.as_ref();
    let phase = phase(status);
    let is = |kind: &str, value: &str| condition(status, kind).is_some_and(|c| c.status == value);
    let own = containers(status).find(|container| container.name == labels::TRAINER_CONTAINER);
    // The kubelet changes `Ready` and `ContainersReady` together. If only `Ready` is False, the
    // node controller has lost the node, or the pod has a readiness gate.
    let silent = is("Ready", "False") && is("ContainersReady", "True");
    Pod {
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        ours: !identity.job_uid.is_empty() && identity.controller == Some(identity.job_uid),
        index: number(labels::WORKER_INDEX).or_else(|| part_of_name(metadata, 1)),
        attempt: number(labels::ATTEMPT)
            .or_else(|| part_of_name(metadata, 0))
            .unwrap_or(0),
        deleting: metadata.deletion_timestamp.is_some(),
        gone_by: metadata.deletion_timestamp.as_ref().map(|time| time.0),
        created_at: metadata.creation_timestamp.as_ref().map(|time| time.0),
        scheduled_at: condition(status, "PodScheduled")
            .filter(|condition| condition.status == "True")
            .and_then(|condition| condition.last_transition_time.as_ref())
            .map(|time| time.0),
        phase,
        // A sidecar that is not ready does not matter to training; but the pod is Pending until the
        // sidecar has started.
        ready: own.is_some_and(|container| container.ready)
            && !silent
            && phase == PodPhase::Running,
        // Containers have no such time. The later one is also right for a node that comes back.
        ready_at: ["Ready", "ContainersReady"]
            .into_iter()
            .filter_map(|kind| condition(status, kind)?.last_transition_time.as_ref())
            .map(|time| time.0)
            .max(),
        disrupted: is("DisruptionTarget", "True"),
        conditions: uncommon_conditions(status),
        unreachable: silent && spec.iter().all(|spec| spec.readiness_gates.is_none()),
        // The pod does not show it; `observe` adds it.
        node_answers: false,
        agent_silent: false,
        cordoned: false,
        ip: status
            .and_then(|status| status.pod_ip.clone())
            .filter(|ip| !ip.is_empty()),
        node: spec.as_ref().and_then(|spec| spec.node_name.clone()),
        // The pod does not show it; `observe` adds it.
        domain: None,
        gates: gates(spec.as_ref()),
        left_domain: metadata
            .labels
            .as_ref()
            .is_some_and(|all| all.contains_key(labels::LEFT_DOMAIN)),
        replica_label: number(labels::REPLICA_INDEX),
        gang: number(labels::GANG).unwrap_or(0),
        ends_group: annotation(metadata, gang::KUEUE_RETRIABLE) == Some("false"),
        unschedulable: condition(status, "PodScheduled")
            .filter(|condition| condition.status == "False" && gates(spec.as_ref()).is_empty())
            .map(|condition| condition.message.clone().unwrap_or_default()),
        failed: status
            .filter(|_| phase == PodPhase::Failed)
            .map(|status| text(status.reason.as_ref(), status.message.as_ref())),
        sidecar_runs: containers(status)
            .filter(|container| container.name != labels::TRAINER_CONTAINER)
            .any(runs),
        container: own
            .map(container)
            .map(|own| held_up(own, status))
            .unwrap_or_default(),
        initializing: status.and_then(initializing),
        membership,
        earlier: annotation(metadata, labels::EARLIER)
            .map(earlier::parse)
            .unwrap_or_default(),
        replica: annotation(metadata, labels::REPLICA).and_then(ReplicaPlace::parse),
        copies: annotation(metadata, labels::COPY_PAIR).and_then(CopyPair::parse),
        newer_protocol,
        built_from: annotation(metadata, labels::BUILT_FROM).and_then(BuiltFrom::parse),
        // The pod does not show it; `observe` adds it.
        processes: None,
    }
}

/// The worker's membership, or the protocol of a document that a newer operator wrote. A text that
/// was damaged is no document.
fn place(metadata: &ObjectMeta) -> (Option<Membership>, Option<u32>) {
    let document = annotation(metadata, labels::MEMBERSHIP).unwrap_or_default();
    match Membership::parse(document) {
        Ok(membership) => (membership, None),
        Err(MembershipError::NewerProtocol(protocol)) => (None, Some(protocol)),
        Err(MembershipError::Malformed(_)) => (None, None),
    }
}

fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    let all = metadata.annotations.as_ref()?;
    all.get(key).map(String::as_str)
}

/// Names of the remaining scheduling gates.
fn gates(spec: Option<&PodSpec>) -> Vec<String> {
    let gates = spec.into_iter().flat_map(|spec| &spec.scheduling_gates);
    gates.flatten().map(|gate| gate.name.clone()).collect()
}

fn phase(status: Option<&PodStatus>) -> PodPhase {
    match status.and_then(|status| status.phase.as_deref()) {
        Some("Running") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        Some(_) | None => PodPhase::Pending,
    }
}

fn condition<'a>(status: Option<&'a PodStatus>, kind: &str) -> Option<&'a PodCondition> {
    let mut all = status?.conditions.iter().flatten();
    all.find(|condition| condition.type_ == kind)
}

/// Types of the conditions that are true, except the common ones.
fn uncommon_conditions(status: Option<&PodStatus>) -> Vec<String> {
    let conditions = status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten())
        .filter(|c| c.status == "True" && !COMMON_CONDITIONS.contains(&c.type_.as_str()));
    conditions.map(|c| c.type_.clone()).collect()
}

/// A part of the pod's name, which ends in index and attempt. Users may edit the labels, but not
/// the name.
fn part_of_name(metadata: &ObjectMeta, from_the_end: usize) -> Option<u32> {
    let name = metadata.name.as_deref()?;
    name.rsplit('-').nth(from_the_end)?.parse().ok()
}

#[cfg(test)]
mod tests;
