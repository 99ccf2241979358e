//! What a pod of somebody else's image needs besides: the agent, and how it is to run a script of mode Restart.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EnvVar, ResourceRequirements, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use roundhouse_contract::{Mode, environment, paths};
use roundhouse_planner::Script;

use super::Place;
use super::environment::value;
use super::{NON_ROOT, volumes};

/// Where the agent is.
pub(super) fn agent() -> String {
    format!("{}/{}", paths::INSTALL_DIR, paths::AGENT)
}

/// How the agent runs the script.
pub(super) fn settings(script: &Script) -> Vec<EnvVar> {
    let Script {
        command: _,
        collateral_window,
        leave_grace,
    } = script;
    vec![
        value(environment::MODE, Mode::Restart.to_string()),
        value(
            environment::COLLATERAL_WINDOW_SECONDS,
            collateral_window.as_secs().to_string(),
        ),
        value(
            environment::GRACE_SECONDS,
            leave_grace.as_secs().to_string(),
        ),
    ]
}

/// The init container that brings the agent. It has a user of its own, whatever the pod's is, and
/// resources, because a quota may ask for them.
pub(super) fn installer(place: Place<'_>) -> Container {
    let resources = [("cpu", "100m"), ("memory", "64Mi")];
    let resources: BTreeMap<String, Quantity> = resources
        .into_iter()
        .map(|(name, quantity)| (name.to_owned(), Quantity(quantity.to_owned())))
        .collect();
    Container {
        name: paths::AGENT.to_owned(),
        image: Some(place.trainer_image.to_owned()),
        image_pull_policy: Some(place.pull_policy.to_owned()),
        command: Some(vec![paths::AGENT.to_owned()]),
        args: Some(vec!["install".to_owned(), paths::INSTALL_DIR.to_owned()]),
        volume_mounts: Some(vec![volumes::install_mount()]),
        resources: Some(ResourceRequirements {
            requests: Some(resources.clone()),
            limits: Some(resources),
            claims: None,
        }),
        security_context: Some(SecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(NON_ROOT),
            run_as_group: Some(NON_ROOT),
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
