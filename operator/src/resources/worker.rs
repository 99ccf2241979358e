//! A worker's pod: the user's template, and what the agent needs in it.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, HTTPGetAction, Pod, PodSecurityContext, PodSpec, Probe,
    SeccompProfile, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use roundhouse_contract::{labels, names, ports};
use roundhouse_planner::ValidatedJob;

use self::environment::variables;
use super::{metadata, volumes};
use crate::settings::Settings;

/// User and group of the trainer image.
const NON_ROOT: i64 = 65_532;
/// The agent waits 25 s for its processes, so this leaves it time to write its last words.
const GRACE_SECONDS: i64 = 30;

/// Builds the pod of a worker's attempt, kept from the nodes in `avoid`.
///
/// # Errors
/// The trainer's configuration cannot be written as JSON.
pub fn build(
    job: &ValidatedJob,
    settings: &Settings,
    index: u32,
    attempt: u32,
    avoid: &[String],
) -> Result<Pod, serde_json::Error> {
    let name = &job.key.name;
    let mut meta = metadata(job, names::worker_pod(name, index, attempt));
    let theirs = job.template.metadata.clone().unwrap_or_default();
    let mut all_labels = theirs.labels.unwrap_or_default();
    all_labels.append(meta.labels.get_or_insert_default());
    all_labels.extend([
        (labels::APP_COMPONENT.to_owned(), labels::WORKER.to_owned()),
        (labels::WORKER_INDEX.to_owned(), index.to_string()),
        (labels::ATTEMPT.to_owned(), attempt.to_string()),
    ]);
    meta.labels = Some(all_labels);
    let mut annotations = theirs.annotations.unwrap_or_default();
    let config = serde_json::to_string(&job.trainer)?;
    annotations.insert(labels::TRAINER_CONFIG.to_owned(), config);
    meta.annotations = Some(annotations);

    let mut spec = job.template.spec.clone().unwrap_or_default();
    complete_pod(&mut spec, job, index);
    affinity::keep_from(&mut spec, avoid);
    for container in &mut spec.containers {
        if container.name == labels::TRAINER_CONTAINER {
            complete_trainer(container, job, settings, index);
        }
    }
    Ok(Pod {
        metadata: meta,
        spec: Some(spec),
        status: None,
    })
}

/// What belongs to the pod. The template's word counts where it may have one.
fn complete_pod(spec: &mut PodSpec, job: &ValidatedJob, index: u32) {
    spec.hostname = Some(names::worker_host(&job.key.name, index));
    spec.subdomain = Some(names::service(&job.key.name));
    spec.restart_policy = Some("OnFailure".to_owned());
    spec.automount_service_account_token.get_or_insert(false);
    spec.enable_service_links.get_or_insert(false);
    spec.termination_grace_period_seconds
        .get_or_insert(GRACE_SECONDS);
    let security = spec
        .security_context
        .get_or_insert_with(PodSecurityContext::default);
    security.run_as_non_root.get_or_insert(true);
    security.run_as_user.get_or_insert(NON_ROOT);
    security.run_as_group.get_or_insert(NON_ROOT);
    security.fs_group.get_or_insert(NON_ROOT);
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

/// What belongs to the trainer container.
fn complete_trainer(
    container: &mut Container,
    job: &ValidatedJob,
    settings: &Settings,
    index: u32,
) {
    if container.image.is_none() {
        container.image = Some(settings.trainer_image.clone());
        container
            .image_pull_policy
            .get_or_insert(settings.trainer_pull_policy.clone());
    }
    container.command = Some(vec!["roundhouse-agent".to_owned()]);
    container.args = Some(vec!["--".to_owned(), "roundhouse-train".to_owned()]);
    container
        .env
        .get_or_insert_default()
        .extend(variables(job, index));
    container
        .volume_mounts
        .get_or_insert_default()
        .extend(volumes::mounts(job));
    container.ports.get_or_insert_default().extend([
        port(ports::RENDEZVOUS_NAME, ports::RENDEZVOUS),
        port(ports::AGENT_HTTP_NAME, ports::AGENT_HTTP),
    ]);
    container.readiness_probe = Some(Probe {
        http_get: Some(HTTPGetAction {
            path: Some(ports::READYZ_PATH.to_owned()),
            port: IntOrString::Int(ports::AGENT_HTTP.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(1),
        timeout_seconds: Some(5),
        failure_threshold: Some(3),
        ..Probe::default()
    });
    let security = container
        .security_context
        .get_or_insert_with(SecurityContext::default);
    security.allow_privilege_escalation.get_or_insert(false);
    security.read_only_root_filesystem.get_or_insert(true);
    security.capabilities.get_or_insert_with(|| Capabilities {
        drop: Some(vec!["ALL".to_owned()]),
        add: None,
    });
}

fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: number.into(),
        ..ContainerPort::default()
    }
}

mod affinity;
mod environment;
#[cfg(test)]
mod tests;
