//! Resources that count as GPUs. The operator has them in its settings, which its users usually
//! cannot read.

use anyhow::Context;
use roundhouse_api::TrainingJob;
use roundhouse_planner::{ValidatedJob, Validation, gpu, validate_with};

/// Names of the resources that are GPUs.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct GpuNames {
    /// Extended resources that are whole GPUs, separated by commas: a worker has one process for
    /// each GPU. Give the names of the chart's value `gpuResources`. Only the check of the file
    /// uses these names; the operator uses the chart's.
    #[arg(
        long = "gpu-resources",
        value_name = "NAMES",
        env = "ROUNDHOUSE_GPU_RESOURCES",
        default_value = gpu::USUAL
    )]
    listed: gpu::Listed,
}

impl GpuNames {
    /// Validates the job with these names of GPUs.
    pub(crate) fn validate(&self, job: &TrainingJob) -> anyhow::Result<ValidatedJob> {
        let Validation { job, refusal } = validate_with(job, &self.listed, &[]);
        let Some(refusal) = refusal else {
            return Ok(job);
        };
        if !refusal.is_unlisted_gpu {
            return Err(refusal.into());
        }
        let names: Vec<&str> = self.listed.names().collect();
        let names = names.join(" and ");
        Err(refusal).with_context(|| {
            format!(
                "GPUs are {names} here; if the chart's gpuResources has other names, give them with --gpu-resources"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(workers: u32, limits: &Value) -> TrainingJob {
        let containers = json!([{"name": "trainer", "resources": {"limits": limits}}]);
        let trainer = json!({
            "model": {"name": "mlp"}, "data": {"format": "idx"}, "globalBatchSize": 8, "epochs": 1,
        });
        let template = json!({"spec": {"containers": containers}});
        serde_json::from_value(json!({
            "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "digits", "namespace": "ml"},
            "spec": {"workers": {"replicas": workers, "template": template}, "trainer": trainer},
        }))
        .unwrap()
    }

    #[test]
    fn job_is_validated_with_the_given_gpu_resources() {
        let job = job(2, &json!({"nvidia.com/gpu.shared": "4"}));
        let error = format!("{:#}", GpuNames::default().validate(&job).unwrap_err());
        assert!(error.contains("--gpu-resources"), "{error}");
        assert!(error.contains("spec.workers.procsPerWorker"), "{error}");
        let listed = "nvidia.com/gpu.shared".parse().unwrap();
        let valid = GpuNames { listed }.validate(&job).unwrap();
        assert_eq!(valid.procs_per_worker, 4);
    }

    #[test]
    fn errors_without_gpus_do_not_mention_them() {
        let no_workers = job(0, &json!({}));
        let mut too_many_processes = job(1, &json!({}));
        too_many_processes.spec.workers.procs_per_worker = Some(5_000);
        for wrong in [no_workers, too_many_processes] {
            let error = GpuNames::default().validate(&wrong).unwrap_err();
            assert!(!format!("{error:#}").contains("gpu"), "{error:#}");
        }
    }
}
