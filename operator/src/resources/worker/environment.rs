//! The environment of the trainer container.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};
use roundhouse_api::Checkpoint;
use roundhouse_contract::{environment, paths, ports};
use roundhouse_planner::{JobKey, Program, ValidatedJob};

use super::script;

pub(super) fn variables(job: &ValidatedJob, index: u32) -> Vec<EnvVar> {
    let file = |name: &str| format!("{}/{name}", paths::PODINFO_DIR);
    let mut all = vec![
        value(environment::JOB_NAME, job.key.name.clone()),
        value(environment::JOB_NAMESPACE, job.key.namespace.clone()),
        value(environment::JOB_UID, job.key.uid.clone()),
        value(environment::WORKER_INDEX, index.to_string()),
        value(
            environment::PROCS_PER_WORKER,
            job.procs_per_worker.to_string(),
        ),
        value(environment::MEMBERSHIP_FILE, file(paths::MEMBERSHIP_FILE)),
        value(environment::RUN_DIR, paths::RUN_DIR.to_owned()),
        value(environment::RENDEZVOUS_PORT, ports::RENDEZVOUS.to_string()),
        value(
            environment::TERMINATION_GRACE_SECONDS,
            job.grace.as_secs().to_string(),
        ),
        EnvVar {
            name: environment::POD_IP.to_owned(),
            value: None,
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: "status.podIP".to_owned(),
                    api_version: None,
                }),
                ..EnvVarSource::default()
            }),
        },
    ];
    match &job.program {
        Program::Trainer(_) => {
            let config = file(paths::TRAINER_CONFIG_FILE);
            all.push(value(environment::TRAINER_CONFIG_FILE, config));
            all.push(value(environment::DATA_DIR, paths::DATA_DIR.to_owned()));
        }
        // Without a configuration of the trainer the agent knows that it runs a script.
        Program::Joining { .. } => {}
        Program::Script(script) => all.extend(script::settings(script)),
    }
    let device = Some(device(job)).filter(|device| !device.is_empty());
    all.extend(device.map(|device| value(environment::EXPECTED_DEVICE, device)));
    let stall = job.stall_timeout_seconds.map(|seconds| seconds.to_string());
    all.extend(stall.map(|seconds| value(environment::STALL_TIMEOUT_SECONDS, seconds)));
    if let Some(checkpoint) = &job.checkpoint {
        all.extend(checkpoints(job, checkpoint));
    }
    all
}

/// What the processes are to compute on; empty: nothing is said.
pub(super) fn device(job: &ValidatedJob) -> String {
    job.expected_device
        .map_or_else(String::new, |device| device.to_string())
}

/// The directory bears the job's namespace and name, not its UID: a job that is deleted and applied again
/// under its name continues from its state. It is a directory below the mount and no `subPath`, which the
/// kubelet would make as root: the trainer makes it as the user that writes to it.
fn checkpoints(job: &ValidatedJob, checkpoint: &Checkpoint) -> Vec<EnvVar> {
    let Checkpoint {
        volume: _,
        every_steps,
        every_seconds: _,
        keep,
        best,
    } = checkpoint;
    let JobKey {
        namespace,
        name,
        uid: _,
    } = &job.key;
    let directory = format!("{}/{namespace}/{name}", paths::CHECKPOINT_DIR);
    let steps = every_steps.map(|steps| steps.to_string());
    let metric = best.map(|best| best.metric.to_string());
    let seconds = checkpoint.seconds().map(|seconds| seconds.to_string());
    [
        (environment::CHECKPOINT_DIR, Some(directory)),
        (environment::CHECKPOINT_EVERY_STEPS, steps),
        (environment::CHECKPOINT_EVERY_SECONDS, seconds),
        (environment::CHECKPOINT_KEEP, Some(keep.to_string())),
        (environment::CHECKPOINT_BEST, metric),
    ]
    .into_iter()
    .filter_map(|(name, text)| Some(value(name, text?)))
    .collect()
}

pub(super) fn value(name: &str, value: String) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value),
        value_from: None,
    }
}
