//! Volumes of a worker: its documents, memory and temporary files, the data and the checkpoints.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, DownwardAPIVolumeFile, DownwardAPIVolumeSource, EmptyDirVolumeSource,
    HostPathVolumeSource, ObjectFieldSelector, PersistentVolumeClaimVolumeSource, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use roundhouse_api::{CheckpointVolume, CopyMedium, LocalCopies};
use roundhouse_contract::TrainerConfig;
use roundhouse_contract::trainer::DataVolume;
use roundhouse_contract::{labels, paths};
use roundhouse_planner::{Program, ValidatedJob};

const PODINFO: &str = "roundhouse-podinfo";
const DATA: &str = "roundhouse-data";
const WEIGHTS: &str = "roundhouse-weights";
const CHECKPOINTS: &str = "roundhouse-checkpoints";
const COPIES: &str = "roundhouse-copies";
/// Volumes in memory: name and mount path. NCCL and Gloo need `/dev/shm`.
const MEMORY: [(&str, &str); 2] = [
    ("roundhouse-run", paths::RUN_DIR),
    ("roundhouse-shm", "/dev/shm"),
];
const TMP: (&str, &str) = ("roundhouse-tmp", "/tmp");
const INSTALLED: (&str, &str) = ("roundhouse-agent", paths::INSTALL_DIR);

pub(super) fn volumes(job: &ValidatedJob) -> Vec<Volume> {
    let mut all = vec![Volume {
        name: PODINFO.to_owned(),
        downward_api: Some(DownwardAPIVolumeSource {
            items: Some(podinfo(job)),
            default_mode: None,
        }),
        ..Volume::default()
    }];
    let empty = |name: &str, medium: Option<&str>| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: medium.map(str::to_owned),
            size_limit: None,
        }),
        ..Volume::default()
    };
    all.extend(MEMORY.iter().map(|(name, _)| empty(name, Some("Memory"))));
    match &job.program {
        Program::Trainer(config) => {
            all.push(empty(TMP.0, None));
            all.extend(config.data.volume.as_ref().map(|volume| data(DATA, volume)));
            all.extend(weights(config).map(|volume| data(WEIGHTS, volume)));
        }
        Program::Joining { .. } | Program::Script(_) => {
            all.push(empty(INSTALLED.0, None));
            all.extend(script_needs_tmp(job).then(|| empty(TMP.0, None)));
        }
    }
    all.extend(job.checkpoint.as_ref().map(|c| checkpoints(&c.volume)));
    all.extend(local_copies(job).map(copies));
    all
}

pub(super) fn mounts(job: &ValidatedJob) -> Vec<VolumeMount> {
    let mut all = vec![mount(PODINFO, paths::PODINFO_DIR, true)];
    all.extend(MEMORY.iter().map(|(name, path)| mount(name, path, false)));
    match &job.program {
        Program::Trainer(config) => {
            all.push(mount(TMP.0, TMP.1, false));
            let has_data = config.data.volume.is_some();
            all.extend(has_data.then(|| mount(DATA, paths::DATA_DIR, true)));
            all.extend(weights(config).map(|_| mount(WEIGHTS, paths::WEIGHTS_DIR, true)));
        }
        Program::Joining { .. } | Program::Script(_) => {
            all.push(mount(INSTALLED.0, INSTALLED.1, true));
            all.extend(script_needs_tmp(job).then(|| mount(TMP.0, TMP.1, false)));
        }
    }
    let keeps_state = job.checkpoint.is_some();
    all.extend(keeps_state.then(|| mount(CHECKPOINTS, paths::CHECKPOINT_DIR, false)));
    all.extend(local_copies(job).map(|_| mount(COPIES, paths::COPIES_DIR, false)));
    all
}

/// Whether the operator has to mount a directory for temporary files, which PyTorch needs. A
/// writable image has one. A mount of the template at `/tmp` stays.
fn script_needs_tmp(job: &ValidatedJob) -> bool {
    let spec = job.template.spec.iter();
    let mut containers = spec.flat_map(|spec| &spec.containers);
    let trainer = containers.find(|container| container.name == labels::TRAINER_CONTAINER);
    trainer.is_some_and(|trainer| {
        let security = trainer.security_context.as_ref();
        let is_read_only = security.and_then(|it| it.read_only_root_filesystem);
        let mut mounts = trainer.volume_mounts.iter().flatten();
        is_read_only == Some(true)
            && mounts.all(|mount| mount.mount_path.trim_end_matches('/') != TMP.1)
    })
}

/// The mount into which the init container copies the agent.
pub(super) fn install_mount() -> VolumeMount {
    mount(INSTALLED.0, INSTALLED.1, false)
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

fn podinfo(job: &ValidatedJob) -> Vec<DownwardAPIVolumeFile> {
    let mut files = vec![annotation(paths::MEMBERSHIP_FILE, labels::MEMBERSHIP)];
    if job.program.trainer().is_some() {
        files.push(annotation(
            paths::TRAINER_CONFIG_FILE,
            labels::TRAINER_CONFIG,
        ));
    }
    if job.has_large_replicas() {
        files.push(annotation(paths::REPLICA_PLACE_FILE, labels::REPLICA));
    }
    if job.has_copy_pairs() {
        files.push(annotation(paths::COPY_PAIR_FILE, labels::COPY_PAIR));
    }
    files
}

fn annotation(file: &str, key: &str) -> DownwardAPIVolumeFile {
    DownwardAPIVolumeFile {
        path: file.to_owned(),
        field_ref: Some(ObjectFieldSelector {
            field_path: format!("metadata.annotations['{key}']"),
            api_version: None,
        }),
        ..DownwardAPIVolumeFile::default()
    }
}

/// The volume with the initial weights, if the job has one.
fn weights(config: &TrainerConfig) -> Option<&DataVolume> {
    config.model.init_from.as_ref()?.volume.as_ref()
}

fn data(name: &str, volume: &DataVolume) -> Volume {
    let DataVolume {
        config_map,
        persistent_volume_claim,
    } = volume;
    Volume {
        name: name.to_owned(),
        config_map: config_map.as_ref().map(|source| ConfigMapVolumeSource {
            name: source.name.clone(),
            ..ConfigMapVolumeSource::default()
        }),
        persistent_volume_claim: persistent_volume_claim.as_ref().map(|source| {
            PersistentVolumeClaimVolumeSource {
                claim_name: source.claim_name.clone(),
                read_only: Some(true),
            }
        }),
        ..Volume::default()
    }
}

fn local_copies(job: &ValidatedJob) -> Option<&LocalCopies> {
    job.checkpoint.as_ref()?.local.as_ref()
}

fn copies(local: &LocalCopies) -> Volume {
    let medium = match local.medium {
        CopyMedium::Memory => Some("Memory".to_owned()),
        CopyMedium::Disk => None,
    };
    Volume {
        name: COPIES.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium,
            size_limit: Some(Quantity(local.size_limit.clone())),
        }),
        ..Volume::default()
    }
}

fn checkpoints(volume: &CheckpointVolume) -> Volume {
    let CheckpointVolume {
        persistent_volume_claim,
        host_path,
    } = volume;
    Volume {
        name: CHECKPOINTS.to_owned(),
        persistent_volume_claim: persistent_volume_claim.as_ref().map(|source| {
            PersistentVolumeClaimVolumeSource {
                claim_name: source.claim_name.clone(),
                read_only: None,
            }
        }),
        // A missing directory stops the pod with a clear event. A directory that the kubelet
        // created would belong to root, and the trainer could not write to it.
        host_path: host_path.as_ref().map(|source| HostPathVolumeSource {
            path: source.path.clone(),
            type_: Some("Directory".to_owned()),
        }),
        ..Volume::default()
    }
}
