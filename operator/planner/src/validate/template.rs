//! The pod template: what the operator decides itself is refused.

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use roundhouse_contract::ExpectedDevice;
use roundhouse_contract::labels::TRAINER_CONTAINER;

use super::{InvalidSpec, RESERVED_VOLUME_PREFIX, invalid};
use crate::gpu;

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

/// GPUs in the trainer container's limits.
pub(super) fn gpus(template: &PodTemplateSpec) -> Result<u32, InvalidSpec> {
    let limits =
        trainer(template).filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    for limits in limits {
        for resource in gpu::RESOURCES {
            let Some(quantity) = limits.get(resource) else {
                continue;
            };
            return quantity
                .0
                .parse()
                .or_else(|_| invalid(format!("limits[{resource}]"), "must be a whole number"));
        }
    }
    Ok(0)
}

/// What the trainer container is to compute on. `None`: its limits do not tell, as with slices of a GPU (MIG) and
/// with resource claims.
pub(super) fn expected_device(template: &PodTemplateSpec, num_gpus: u32) -> Option<ExpectedDevice> {
    let is_unknown = trainer(template)
        .filter_map(|container| container.resources.as_ref())
        .any(|resources| {
            let mut limits = resources.limits.iter().flatten();
            resources.claims.iter().flatten().next().is_some()
                || limits.any(|(name, _)| gpu::is_slice(name))
        });
    (!is_unknown).then(|| ExpectedDevice::of_gpus(num_gpus))
}

fn trainer(template: &PodTemplateSpec) -> impl Iterator<Item = &Container> {
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    containers.filter(|container| container.name == TRAINER_CONTAINER)
}
