//! The pod template: what the operator decides itself is refused.

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use roundhouse_contract::labels::TRAINER_CONTAINER;

use super::{InvalidSpec, RESERVED_VOLUME_PREFIX, invalid};

/// Extended resources that are GPUs.
const GPU_RESOURCES: [&str; 2] = ["nvidia.com/gpu", "amd.com/gpu"];

/// Refuses what the operator decides itself.
pub(super) fn refuse_our_fields(spec: &PodSpec) -> Result<(), InvalidSpec> {
    let field = |name: &str| format!("spec.workers.template.spec.{name}");
    let refused = [
        ("hostNetwork", spec.host_network == Some(true)),
        ("hostPID", spec.host_pid == Some(true)),
        ("hostIPC", spec.host_ipc == Some(true)),
        ("nodeName", spec.node_name.is_some()),
        ("hostname", spec.hostname.is_some()),
        ("subdomain", spec.subdomain.is_some()),
    ];
    if let Some((name, _)) = refused.into_iter().find(|(_, is_set)| *is_set) {
        return invalid(
            field(name),
            "leave it out: the operator decides it for every worker",
        );
    }
    if spec
        .restart_policy
        .as_deref()
        .is_some_and(|policy| policy != "OnFailure")
    {
        return invalid(field("restartPolicy"), "leave it out or set OnFailure");
    }
    for (at, volume) in spec.volumes.iter().flatten().enumerate() {
        if volume.name.starts_with(RESERVED_VOLUME_PREFIX) {
            let message = format!("take a name that does not start with {RESERVED_VOLUME_PREFIX}");
            return invalid(field(&format!("volumes[{at}].name")), message);
        }
    }
    Ok(())
}

/// GPUs in the trainer container's limits; one process if there are none.
pub(super) fn gpus(template: &PodTemplateSpec) -> Result<u32, InvalidSpec> {
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers
        .filter(|container| container.name == TRAINER_CONTAINER)
        .filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    for limits in limits {
        for resource in GPU_RESOURCES {
            let Some(quantity) = limits.get(resource) else {
                continue;
            };
            return quantity.0.parse().map_or_else(
                |_| invalid(format!("limits[{resource}]"), "must be a whole number"),
                |count: u32| Ok(count.max(1)),
            );
        }
    }
    Ok(1)
}
