//! What counts as a GPU: a setting of the operator, which its users cannot read in general.

use anyhow::Context;
use roundhouse_api::TrainingJob;
use roundhouse_planner::{Examined, ValidatedJob, examine, gpu};

/// Names of the resources that are GPUs.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct GpuNames {
    /// Extended resources that are whole GPUs, with commas between them: a worker has one process for each. Give what the chart's
    /// value `gpuResources` lists in the cluster. Only the check of the file uses these names; the operator uses the chart's.
    #[arg(
        long = "gpu-resources",
        value_name = "NAMES",
        env = "ROUNDHOUSE_GPU_RESOURCES",
        default_value = gpu::USUAL
    )]
    listed: gpu::Listed,
}

impl GpuNames {
    /// The job, if it can be run where these are the GPUs.
    pub(crate) fn validate(&self, job: &TrainingJob) -> anyhow::Result<ValidatedJob> {
        let Examined { job, refusal } = examine(job, &self.listed, &[]);
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
                "GPUs are {names} here; if the chart's gpuResources lists others in the cluster, give these with --gpu-resources"
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
    fn a_job_is_checked_with_the_names_of_gpus_that_the_cluster_has() {
        let job = job(2, &json!({"nvidia.com/gpu.shared": "4"}));
        let told = format!("{:#}", GpuNames::default().validate(&job).unwrap_err());
        assert!(told.contains("--gpu-resources"), "{told}");
        assert!(told.contains("spec.workers.procsPerWorker"), "{told}");
        let listed = "nvidia.com/gpu.shared".parse().unwrap();
        let valid = GpuNames { listed }.validate(&job).unwrap();
        assert_eq!(valid.procs_per_worker, 4);
    }

    #[test]
    fn another_mistake_is_told_without_gpus() {
        let no_workers = job(0, &json!({}));
        let mut too_many_processes = job(1, &json!({}));
        too_many_processes.spec.workers.procs_per_worker = Some(5_000);
        for wrong in [no_workers, too_many_processes] {
            let told = GpuNames::default().validate(&wrong).unwrap_err();
            assert!(!format!("{told:#}").contains("gpu"), "{told:#}");
        }
    }
}
