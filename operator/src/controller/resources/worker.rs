//! The pod of a worker: the user's template, and what the agent needs in addition.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, HTTPGetAction, Pod, PodSecurityContext, PodSpec, Probe,
    SeccompProfile, SecurityContext, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use roundhouse_api::Gang;
use roundhouse_contract::{BuiltFrom, gang, labels, names, paths, ports};
use roundhouse_planner::ValidatedJob;

use self::environment::variables;
use super::{metadata, volumes};
use crate::watch::topology::NodeRef;

/// Program of the built-in trainer.
const TRAINER: &str = "roundhouse-train";
/// User and group of the trainer image.
const NON_ROOT: i64 = 65_532;

/// Label of nodes with their architecture.
const ARCHITECTURE: &str = "kubernetes.io/arch";

/// The pod's place in the job, and the operator's settings for it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Index of the worker.
    pub index: u32,
    /// Number of the worker's attempt.
    pub attempt: u32,
    /// The replica whose topology domain the pod should share; `None` for a spare, and in jobs
    /// without a domain for each replica.
    pub replica: Option<u32>,
    /// The gang of the pod; 0 for the first one of the job, and without a gang scheduler.
    pub gang: u32,
    /// Nodes on which the pod must not run.
    pub avoid: &'a [NodeRef],
    /// Nodes that do not answer: the pod runs on others if they have room.
    pub lost: &'a [NodeRef],
    /// Trainer image of the job's pods.
    pub trainer_image: &'a str,
    /// Pull policy of that image.
    pub pull_policy: &'a str,
    /// Architecture of the nodes on which the image runs; empty for all architectures.
    pub architecture: &'a str,
    /// Whether containers of that image run as its user. If not, the platform chooses a user, as
    /// OpenShift does.
    pub fixed_users: bool,
}

/// Builds the pod of a worker.
///
/// # Errors
/// The trainer's configuration cannot be written as JSON.
pub fn build(job: &ValidatedJob, place: Place<'_>) -> Result<Pod, serde_json::Error> {
    let mut spec = job.template.spec.clone().unwrap_or_default();
    complete_pod(&mut spec, job, place);
    keep_to_architecture(&mut spec, job, place);
    let first = spec.init_containers.iter_mut().flatten();
    first.chain(&mut spec.containers).for_each(restrict);
    if job.program.own_command().is_some() {
        let mut containers = spec.containers.iter();
        let trainer = containers.find(|container| container.name == labels::TRAINER_CONTAINER);
        let resources = trainer.and_then(|container| container.resources.as_ref());
        let first = script::installer(place, resources);
        spec.init_containers
            .get_or_insert_default()
            .insert(0, first);
    }
    explain_ends(&mut spec);
    affinity::keep_from(&mut spec, place.avoid);
    affinity::prefer_others(&mut spec, place.lost);
    affinity::pack(&mut spec, job, place.replica);
    for container in &mut spec.containers {
        if container.name == labels::TRAINER_CONTAINER {
            complete_trainer(container, job, place);
        }
    }
    Ok(Pod {
        metadata: described(job, place)?,
        spec: Some(spec),
        status: None,
    })
}

/// Name, labels and annotations of the pod. Those of the template stay, unless they have the names
/// of ours.
fn described(job: &ValidatedJob, place: Place<'_>) -> Result<ObjectMeta, serde_json::Error> {
    let Place { index, attempt, .. } = place;
    let name = &job.identity.name;
    let mut meta = metadata(&job.identity, names::worker_pod(name, index, attempt));
    let theirs = job.template.metadata.clone().unwrap_or_default();
    let mut all_labels = theirs.labels.unwrap_or_default();
    all_labels.append(meta.labels.get_or_insert_default());
    all_labels.extend([
        (labels::APP_COMPONENT.to_owned(), labels::WORKER.to_owned()),
        (labels::WORKER_INDEX.to_owned(), index.to_string()),
        (labels::ATTEMPT.to_owned(), attempt.to_string()),
    ]);
    let replica = place
        .replica
        .map(|index| (labels::REPLICA_INDEX.to_owned(), index.to_string()));
    all_labels.extend(replica);
    if place.gang > 0 {
        all_labels.insert(labels::GANG.to_owned(), place.gang.to_string());
    } else {
        // One of the template would name a gang that the pod is not in.
        all_labels.remove(labels::GANG);
    }
    let mut annotations = theirs.annotations.unwrap_or_default();
    let group = names::pod_group(name, place.gang);
    match job.scheduling.gang {
        // A pod names a PodGroup of Kubernetes itself in its spec: see `grouped`.
        Gang::None | Gang::Kubernetes => {}
        Gang::Coscheduling => {
            all_labels.insert(gang::COSCHEDULING_GROUP.to_owned(), group);
        }
        Gang::Volcano => {
            annotations.insert(gang::VOLCANO_GROUP.to_owned(), group);
        }
    }
    if all_labels.contains_key(gang::KUEUE_GROUP) {
        let role = annotations.entry(gang::KUEUE_ROLE.to_owned());
        role.or_insert_with(|| labels::WORKER.to_owned());
    }
    if let Some(trainer) = job.program.trainer() {
        let config = serde_json::to_string(trainer)?;
        annotations.insert(labels::TRAINER_CONFIG.to_owned(), config);
    }
    let built_from = BuiltFrom {
        job_generation: job.generation,
        spec: job.built_from.clone(),
        spec_version: BuiltFrom::SPEC_VERSION,
        trainer_image: place.trainer_image.to_owned(),
        procs_per_worker: Some(job.procs_per_worker),
        expected_device: Some(environment::device(job)),
        trainer_architecture: Some(place.architecture.to_owned()),
        fixed_users: Some(place.fixed_users),
        named_nodes: affinity::named(place.avoid.iter().chain(place.lost)),
    };
    annotations.insert(labels::BUILT_FROM.to_owned(), built_from.to_json()?);
    meta.labels = Some(all_labels);
    meta.annotations = Some(annotations);
    Ok(meta)
}

/// Completes the pod's spec. The template decides where it may.
fn complete_pod(spec: &mut PodSpec, job: &ValidatedJob, place: Place<'_>) {
    spec.hostname = Some(names::worker_host(&job.identity.name, place.index));
    spec.subdomain = Some(names::service(&job.identity.name));
    spec.restart_policy = Some("OnFailure".to_owned());
    spec.automount_service_account_token.get_or_insert(false);
    spec.enable_service_links.get_or_insert(false);
    spec.termination_grace_period_seconds
        .get_or_insert(i64::try_from(job.grace.as_secs()).unwrap_or(i64::MAX));
    let security = spec
        .security_context
        .get_or_insert_with(PodSecurityContext::default);
    security.run_as_non_root.get_or_insert(true);
    // An image of the user has a user of its own.
    if job.program.trainer().is_some() && place.fixed_users {
        security.run_as_user.get_or_insert(NON_ROOT);
        security.run_as_group.get_or_insert(NON_ROOT);
        if security.fs_group.is_none() {
            security.fs_group = Some(NON_ROOT);
            // Otherwise the kubelet changes the group of every file of a volume at each start of a
            // pod: minutes for the checkpoints and data of many jobs.
            security
                .fs_group_change_policy
                .get_or_insert("OnRootMismatch".to_owned());
        }
    }
    security
        .seccomp_profile
        .get_or_insert_with(|| SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        });
    spec.volumes
        .get_or_insert_default()
        .extend(volumes::volumes(job));
}

/// Keeps a pod that runs programs of our image from nodes on which they cannot start
/// (`exec format error`), unless the template chooses the architecture.
fn keep_to_architecture(spec: &mut PodSpec, job: &ValidatedJob, place: Place<'_>) {
    let mut containers = spec.containers.iter();
    let trainer = containers.find(|container| container.name == labels::TRAINER_CONTAINER);
    let has_our_image = trainer.is_some_and(|trainer| trainer.image.is_none());
    // The init container copies our agent into the user's image.
    let has_our_agent = job.program.own_command().is_some();
    let is_needed = !place.architecture.is_empty() && (has_our_image || has_our_agent);
    if is_needed && !chooses_architecture(spec) {
        let selector = spec.node_selector.get_or_insert_default();
        let chosen = selector.entry(ARCHITECTURE.to_owned());
        chosen.or_insert_with(|| place.architecture.to_owned());
    }
}

/// Whether an affinity of the template chooses the architecture.
fn chooses_architecture(spec: &PodSpec) -> bool {
    let affinity = spec.affinity.as_ref();
    let nodes = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required = nodes.and_then(|nodes| {
        nodes
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let terms = required.iter().flat_map(|it| &it.node_selector_terms);
    let mut rules = terms.flat_map(|term| term.match_expressions.iter().flatten());
    rules.any(|rule| rule.key == ARCHITECTURE)
}

/// Completes the trainer container.
fn complete_trainer(container: &mut Container, job: &ValidatedJob, place: Place<'_>) {
    if container.image.is_none() {
        container.image = Some(place.trainer_image.to_owned());
        container
            .image_pull_policy
            .get_or_insert(place.pull_policy.to_owned());
    }
    let (agent, command) = job.program.own_command().map_or_else(
        || (paths::AGENT.to_owned(), vec![TRAINER.to_owned()]),
        |command| (script::agent(), command.to_vec()),
    );
    let args = std::iter::once("--".to_owned()).chain(command);
    container.command = Some(vec![agent]);
    container.args = Some(args.collect());
    container
        .env
        .get_or_insert_default()
        .extend(variables(job, place.index));
    mount(container, volumes::mounts(job));
    add_ports(container);
    // A container with one process ends when the process dies. With several processes only this
    // probe shows a death, so one failure is enough. Processes of a large replica end without their
    // container, too.
    container.readiness_probe = Some(Probe {
        http_get: Some(HTTPGetAction {
            path: Some(ports::READYZ_PATH.to_owned()),
            port: IntOrString::Int(ports::AGENT_HTTP.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(1),
        timeout_seconds: Some(5),
        failure_threshold: Some(if job.procs_per_replica() > 1 { 1 } else { 3 }),
        ..Probe::default()
    });
    if job.program.trainer().is_some() {
        let security = container.security_context.get_or_insert_default();
        security.read_only_root_filesystem.get_or_insert(true);
    }
}

/// Applies the restricted Pod Security Standard to a container, sidecars included. A capability
/// that a container needs has to be added by name, so that the policy sees it. A template that adds
/// `ALL` keeps all capabilities: containerd drops `ALL` after it has added `ALL`.
fn restrict(container: &mut Container) {
    let security = container.security_context.get_or_insert_default();
    if !must_escalate(security) {
        security.allow_privilege_escalation.get_or_insert(false);
    }
    let capabilities = security.capabilities.get_or_insert_default();
    let mut added = capabilities.add.iter().flatten();
    if added.any(|name| name == "ALL") {
        return;
    }
    let dropped = capabilities.drop.get_or_insert_default();
    if dropped.iter().all(|name| name != "ALL") {
        dropped.push("ALL".to_owned());
    }
}

/// Makes the kubelet keep the last log lines of failed init containers, for the job's status.
fn explain_ends(spec: &mut PodSpec) {
    for container in spec.init_containers.iter_mut().flatten() {
        let policy = &mut container.termination_message_policy;
        policy.get_or_insert_with(|| "FallbackToLogsOnError".to_owned());
    }
}

/// Whether the API server accepts the container only with `allowPrivilegeEscalation`.
fn must_escalate(security: &SecurityContext) -> bool {
    let added = security.capabilities.iter();
    let mut added = added.flat_map(|it| it.add.iter().flatten());
    let is_admin = added.any(|capability| matches!(&**capability, "SYS_ADMIN" | "CAP_SYS_ADMIN"));
    security.privileged == Some(true) || is_admin
}

/// Adds our mounts, except at paths where the template has its own (for example a larger /dev/shm).
fn mount(container: &mut Container, ours: Vec<VolumeMount>) {
    let all = container.volume_mounts.get_or_insert_default();
    for mount in ours {
        if all
            .iter()
            .all(|theirs| theirs.mount_path != mount.mount_path)
        {
            all.push(mount);
        }
    }
}

/// Adds our ports, under other names where the template uses ours: many users call a port
/// `metrics`.
fn add_ports(container: &mut Container) {
    let all = container.ports.get_or_insert_default();
    for (number, names) in ports::NAMES {
        let is_free = |name: &&str| all.iter().all(|port| port.name.as_deref() != Some(*name));
        let name = names.into_iter().find(is_free);
        all.push(ContainerPort {
            name: name.map(str::to_owned),
            container_port: number.into(),
            ..ContainerPort::default()
        });
    }
}

mod affinity;
mod environment;
pub(crate) mod grouped;
mod script;
#[cfg(test)]
mod tests;
