//! Checks the pod template: fields that the operator sets itself are refused.

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use roundhouse_contract::ExpectedDevice;
use roundhouse_contract::labels::{GROUP, TRAINER_CONTAINER};

use crate::gpu;
use crate::invalid::{InvalidSpec, invalid};
use crate::program::Program;

/// Prefix of volume names that the operator reserves.
const RESERVED_VOLUME_PREFIX: &str = "roundhouse-";

/// Refuses fields that the operator sets itself.
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

/// Refuses the operator's own annotations: a worker whose template contains a membership would
/// ignore each real one.
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

/// Number of GPUs in the limits of the trainer container; a worker has one process for each.
pub(super) fn gpus(template: &PodTemplateSpec, listed: &gpu::Listed) -> Result<u32, InvalidSpec> {
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    let trainers = containers
        .enumerate()
        .filter(|(_, container)| container.name == TRAINER_CONTAINER);
    for (at, container) in trainers {
        let limits = container
            .resources
            .as_ref()
            .and_then(|it| it.limits.as_ref());
        for resource in listed.names() {
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

/// Requires the number of processes for a claim, because the pod does not show the
/// claim's number of devices.
pub(super) fn refuse_claims_without_processes(
    template: &PodTemplateSpec,
    procs_per_worker: Option<u32>,
) -> Result<(), InvalidSpec> {
    let resources = trainer(template).filter_map(|container| container.resources.as_ref());
    let mut claims = resources.flat_map(|resources| resources.claims.iter().flatten());
    match claims.next() {
        Some(claim) if procs_per_worker.is_none() => invalid(
            "spec.workers.procsPerWorker",
            format!(
                "give it: the number of GPUs of the claim {} is not known, and each process has one",
                claim.name
            ),
        ),
        _ => Ok(()),
    }
}

/// Refuses GPUs that no process would use: one process of the built-in trainer would train on a CPU
/// beside eight Gaudis, and one process of a script would leave seven of them idle.
pub(super) fn refuse_unused_devices(
    template: &PodTemplateSpec,
    program: &Program,
    procs_per_worker: Option<u32>,
    listed: &gpu::Listed,
) -> Result<(), InvalidSpec> {
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    let trainers = containers
        .enumerate()
        .filter(|(_, container)| container.name == TRAINER_CONTAINER);
    for (at, container) in trainers {
        let limits = container.resources.iter();
        for (resource, quantity) in limits.flat_map(|it| it.limits.iter().flatten()) {
            let field = || {
                format!("spec.workers.template.spec.containers[{at}].resources.limits[{resource}]")
            };
            if program.trainer().is_some() && gpu::is_unusable(resource) {
                return invalid(
                    field(),
                    "the built-in trainer computes on GPUs of NVIDIA and AMD, or on CPUs: leave it out, or run a script of \
                     your own",
                );
            }
            let is_one = matches!(quantity.0.as_str(), "0" | "1");
            let is_unknown = gpu::has_unknown_processes(resource) && !listed.has(resource);
            if is_unknown && !is_one && procs_per_worker.is_none() {
                return Err(InvalidSpec {
                    field: "spec.workers.procsPerWorker".to_owned(),
                    message: format!(
                        "give it: how many processes share {} {resource} is not known, because gpuResources of the chart \
                         does not list this name",
                        quantity.0
                    ),
                    is_unlisted_gpu: true,
                });
            }
        }
    }
    Ok(())
}

/// The device for the trainer container. `None` if its limits do not determine it, as with slices
/// of a GPU (MIG), with resource claims, and with devices of any other name.
pub(super) fn expected_device(template: &PodTemplateSpec, num_gpus: u32) -> Option<ExpectedDevice> {
    let is_unknown = trainer(template)
        .filter_map(|container| container.resources.as_ref())
        .any(|resources| {
            let mut limits = resources.limits.iter().flatten();
            resources.claims.iter().flatten().next().is_some()
                || limits.any(|(name, _)| {
                    gpu::is_slice(name)
                        || gpu::has_unknown_processes(name)
                        || (num_gpus == 0 && gpu::is_extended(name))
                })
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

    use roundhouse_contract::ExpectedDevice;

    use crate::invalid::InvalidSpec;
    use crate::testing::raw_job;
    use crate::validate::{ValidatedJob, Validation};
    use crate::{gpu, validate, validate_with};

    fn refusal(template: Value) -> Option<String> {
        let mut job = raw_job(1);
        job.spec.workers.template = Some(serde_json::from_value(template).unwrap());
        validate(&job).err().map(|error| error.field)
    }

    #[test]
    fn only_own_annotations_are_refused() {
        let with = |key: &str| json!({"metadata": {"annotations": {key: "x"}}, "spec": {}});
        let field = "spec.workers.template.metadata.annotations[roundhouse.dev/membership]";
        assert_eq!(
            refusal(with("roundhouse.dev/membership")).as_deref(),
            Some(field)
        );
        assert_eq!(refusal(with("example.com/team")), None);
    }

    #[test]
    fn refused_quantity_is_named_by_full_path() {
        let field = "spec.workers.template.spec.containers[1].resources.limits[nvidia.com/gpu]";
        for quantity in ["some", "", "-1", "0.5", "500m", "1e18", "4294967296"] {
            let gpus = json!({"limits": {"nvidia.com/gpu": quantity}});
            let containers = json!([{"name": "sidecar"}, {"name": "trainer", "resources": gpus}]);
            let template = json!({"spec": {"containers": containers}});
            assert_eq!(refusal(template).as_deref(), Some(field), "{quantity}");
        }
    }

    fn with_resources(resources: &Value, procs: Option<u32>) -> Result<ValidatedJob, InvalidSpec> {
        let mut job = raw_job(1);
        let containers = json!([{"name": "trainer", "resources": resources}]);
        let template = json!({"spec": {"containers": containers}});
        job.spec.workers.template = Some(serde_json::from_value(template).unwrap());
        job.spec.workers.procs_per_worker = procs;
        validate(&job)
    }

    #[test]
    fn unknown_devices_do_not_count_as_cpu() {
        let device = |limits: Value| {
            let job = with_resources(&json!({ "limits": limits }), None).unwrap();
            (job.expected_device, job.procs_per_worker)
        };
        let (cpu, gpus) = (
            Some(ExpectedDevice::of_gpus(0)),
            Some(ExpectedDevice::of_gpus(2)),
        );
        for (limits, expected) in [
            (
                json!({"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"}),
                (cpu, 1),
            ),
            (json!({"nvidia.com/gpu": "2", "rdma/hca": "1"}), (gpus, 2)),
            (json!({"nvidia.com/gpu.shared": "1"}), (None, 1)),
            (json!({"nvidia.com/mig-1g.10gb": "2"}), (None, 1)),
            (json!({"example.com/new": "1"}), (None, 1)),
        ] {
            assert_eq!(device(limits.clone()), expected, "{limits}");
        }
    }

    #[test]
    fn unused_devices_are_refused_with_advice() {
        let limits = |resource: &str, number: &str| json!({"limits": {resource: number}});
        // The built-in trainer has no backend for them.
        for resource in ["gpu.intel.com/i915", "habana.ai/gaudi"] {
            let refused = with_resources(&limits(resource, "1"), Some(1)).unwrap_err();
            assert!(refused.field.contains(resource), "{}", refused.field);
            assert!(refused.message.contains("a script of your own"));
        }
        let script = |resources: Value, procs: Option<u32>| {
            let mut job = raw_job(1);
            job.spec.trainer = None;
            let containers = json!([{
                "name": "trainer", "image": "i", "command": ["train"], "resources": resources,
            }]);
            let template = json!({"spec": {"containers": containers}});
            job.spec.workers.template = Some(serde_json::from_value(template).unwrap());
            job.spec.workers.procs_per_worker = procs;
            validate(&job).map(|job| job.procs_per_worker)
        };
        for resource in ["habana.ai/gaudi", "nvidia.com/gpu.shared"] {
            let refused = script(limits(resource, "8"), None).unwrap_err();
            assert_eq!(refused.field, "spec.workers.procsPerWorker");
            assert!(refused.message.contains(resource), "{}", refused.message);
            assert_eq!(script(limits(resource, "8"), Some(8)).unwrap(), 8);
            assert_eq!(script(limits(resource, "1"), None).unwrap(), 1);
        }
    }

    #[test]
    fn worker_has_one_process_per_listed_gpu() {
        let listed = "nvidia.com/gpu, example.com/a100,nvidia.com/gpu.shared".parse();
        let listed: gpu::Listed = listed.unwrap();
        let devices_of = |resource: &str| {
            let mut job = raw_job(1);
            let limits = json!({"limits": {resource: "4"}});
            let containers = json!([{"name": "trainer", "resources": limits}]);
            let template = json!({"spec": {"containers": containers}});
            job.spec.workers.template = Some(serde_json::from_value(template).unwrap());
            let Validation { job, refusal } = validate_with(&job, &listed, &[]);
            assert_eq!(refusal, None, "{resource}");
            (job.expected_device, job.procs_per_worker)
        };
        let four = Some(ExpectedDevice::of_gpus(4));
        assert_eq!(devices_of("nvidia.com/gpu"), (four, 4));
        assert_eq!(devices_of("example.com/a100"), (four, 4));
        // Four shares may be of one GPU: four processes, and perhaps one device.
        assert_eq!(devices_of("nvidia.com/gpu.shared"), (None, 4));
        assert_eq!(devices_of("amd.com/gpu"), (None, 1), "not listed");
    }

    #[test]
    fn claim_needs_number_of_processes() {
        let claims = json!({"claims": [{"name": "eight-gpus"}]});
        let refused = with_resources(&claims, None).unwrap_err();
        assert_eq!(refused.field, "spec.workers.procsPerWorker");
        assert!(
            refused.message.contains("eight-gpus"),
            "{}",
            refused.message
        );
        let job = with_resources(&claims, Some(8)).unwrap();
        assert_eq!((job.expected_device, job.procs_per_worker), (None, 8));
    }

    #[test]
    fn built_in_trainer_needs_no_container_in_template() {
        assert_eq!(refusal(json!({"spec": {"priorityClassName": "low"}})), None);
    }
}
