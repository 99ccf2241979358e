//! The environment of the trainer container: the planner's variables, with the places of a pod.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};
use roundhouse_contract::{WorkerSite, environment, paths, ports};
use roundhouse_planner::{JobIdentity, ValidatedJob, launch};

pub(super) fn variables(job: &ValidatedJob, index: u32) -> Vec<EnvVar> {
    let pairs = launch::environment(job, index, site(job)).to_pairs();
    let texts = pairs.into_iter().map(|(name, text)| EnvVar {
        name: name.to_owned(),
        value: Some(text),
        value_from: None,
    });
    texts.chain([pod_ip()]).collect()
}

/// The directory of the checkpoints has the job's namespace and name, not its UID: a job that is
/// deleted and applied again under its name continues from its state. It is a directory below the
/// mount and no `subPath`, which the kubelet would create as root: the trainer creates it as the
/// user that writes to it.
fn site(job: &ValidatedJob) -> WorkerSite {
    let JobIdentity {
        namespace,
        name,
        uid: _,
    } = &job.identity;
    let file = |name: &str| format!("{}/{name}", paths::PODINFO_DIR).into();
    WorkerSite {
        // The pod's own field: see `pod_ip`.
        address: None,
        rendezvous_port: ports::RENDEZVOUS,
        membership_file: file(paths::MEMBERSHIP_FILE),
        replica_place_file: file(paths::REPLICA_PLACE_FILE),
        run_dir: paths::RUN_DIR.into(),
        trainer_config_file: file(paths::TRAINER_CONFIG_FILE),
        data_dir: paths::DATA_DIR.into(),
        checkpoint_dir: format!("{}/{namespace}/{name}", paths::CHECKPOINT_DIR).into(),
        copies_dir: paths::COPIES_DIR.into(),
        copy_pair_file: Some(file(paths::COPY_PAIR_FILE)),
        expected_device: job.expected_device,
    }
}

/// The address of the pod.
fn pod_ip() -> EnvVar {
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
    }
}

/// The device on which the processes are expected to compute; empty if the template does not say.
pub(super) fn device(job: &ValidatedJob) -> String {
    job.expected_device
        .map_or_else(String::new, |device| device.to_string())
}
