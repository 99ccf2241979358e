//! What a pod with the user's own image needs in addition: the agent.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Capabilities, Container, ResourceRequirements, SecurityContext};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use roundhouse_contract::paths;

use super::Place;
use super::{NON_ROOT, volumes};

/// Resources of the container that installs the agent.
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Path of the agent in the pod.
pub(super) fn agent() -> String {
    format!("{}/{}", paths::INSTALL_DIR, paths::AGENT)
}

/// The init container that installs the agent. It has a user of its own, whatever the pod's is,
/// unless the platform chooses users. Its resources are those of the trainer container, for which
/// the namespace's quota and `LimitRange` must have room anyway. It runs before the trainer, so the
/// pod does not request more.
pub(super) fn installer(place: Place<'_>, trainer: Option<&ResourceRequirements>) -> Container {
    let user = place.fixed_users.then_some(NON_ROOT);
    Container {
        name: paths::AGENT.to_owned(),
        image: Some(place.trainer_image.to_owned()),
        image_pull_policy: Some(place.pull_policy.to_owned()),
        command: Some(vec![paths::AGENT.to_owned()]),
        args: Some(vec!["install".to_owned(), paths::INSTALL_DIR.to_owned()]),
        volume_mounts: Some(vec![volumes::install_mount()]),
        resources: trainer.map(|trainer| ResourceRequirements {
            requests: of_processes(trainer.requests.as_ref()),
            limits: of_processes(trainer.limits.as_ref()),
            claims: None,
        }),
        security_context: Some(SecurityContext {
            run_as_non_root: Some(true),
            run_as_user: user,
            run_as_group: user,
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                add: None,
            }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

/// The resources of a container that each process needs, without devices.
fn of_processes(all: Option<&BTreeMap<String, Quantity>>) -> Option<BTreeMap<String, Quantity>> {
    let kept = all.into_iter().flatten();
    let kept = kept.filter(|(name, _)| RESOURCES.contains(&name.as_str()));
    let kept: BTreeMap<String, Quantity> = kept.map(|(k, v)| (k.clone(), v.clone())).collect();
    (!kept.is_empty()).then_some(kept)
}
