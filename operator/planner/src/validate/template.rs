//! The pod template: what the operator decides itself is refused.

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use roundhouse_contract::ExpectedDevice;
use roundhouse_contract::labels::{GROUP, TRAINER_CONTAINER};

use crate::gpu;
use crate::invalid::{InvalidSpec, invalid};

/// Volume names that start so are ours.
const RESERVED_VOLUME_PREFIX: &str = "roundhouse-";

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

/// Refuses annotations of ours: a worker that finds a document of its place in the template ignores each real one.
pub(super) fn refuse_our_annotations(template: &PodTemplateSpec) -> Result<(), InvalidSpec> {
    let metadata = template.metadata.as_ref();
    let annotations = metadata.and_then(|metadata| metadata.annotations.as_ref());
    let ours = format!("{GROUP}/");
    let mut keys = annotations.into_iter().flat_map(|all| all.keys());
    match keys.find(|key| key.starts_with(&ours)) {
        None => Ok(()),
        Some(key) => invalid(
            format!("spec.workers.template.metadata.annotations[{key}]"),
            format!("leave it out: annotations that start with {ours} are the operator's"),
        ),
    }
}

/// GPUs in the trainer container's limits.
pub(super) fn gpus(template: &PodTemplateSpec) -> Result<u32, InvalidSpec> {
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    let trainers = containers
        .enumerate()
        .filter(|(_, container)| container.name == TRAINER_CONTAINER);
    for (at, container) in trainers {
        let limits = container
            .resources
            .as_ref()
            .and_then(|it| it.limits.as_ref());
        for resource in gpu::RESOURCES {
            let Some(quantity) = limits.and_then(|limits| limits.get(resource)) else {
                continue;
            };
            return quantity.0.parse().or_else(|_| {
                let container = format!("spec.workers.template.spec.containers[{at}]");
                let field = format!("{container}.resources.limits[{resource}]");
                invalid(field, "must be a whole number")
            });
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::raw_job;
    use crate::validate;

    fn refusal(template: Value) -> Option<String> {
        let mut job = raw_job(1);
        job.spec.workers.template = Some(serde_json::from_value(template).unwrap());
        validate(&job).err().map(|error| error.field)
    }

    #[test]
    fn annotations_of_ours_are_refused_and_others_are_not() {
        let with = |key: &str| json!({"metadata": {"annotations": {key: "x"}}, "spec": {}});
        let field = "spec.workers.template.metadata.annotations[roundhouse.dev/membership]";
        assert_eq!(
            refusal(with("roundhouse.dev/membership")).as_deref(),
            Some(field)
        );
        assert_eq!(refusal(with("example.com/team")), None);
    }

    #[test]
    fn a_refused_quantity_is_named_by_its_whole_path() {
        let field = "spec.workers.template.spec.containers[1].resources.limits[nvidia.com/gpu]";
        for quantity in ["some", "", "-1", "0.5", "500m", "1e18", "4294967296"] {
            let gpus = json!({"limits": {"nvidia.com/gpu": quantity}});
            let containers = json!([{"name": "sidecar"}, {"name": "trainer", "resources": gpus}]);
            let template = json!({"spec": {"containers": containers}});
            assert_eq!(refusal(template).as_deref(), Some(field), "{quantity}");
        }
    }

    #[test]
    fn a_template_of_the_built_in_trainer_need_not_name_a_container() {
        assert_eq!(refusal(json!({"spec": {"priorityClassName": "low"}})), None);
    }
}
