//! Volumes of a worker: what the operator tells it, room to run in, the data and the checkpoints.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, DownwardAPIVolumeFile, DownwardAPIVolumeSource, EmptyDirVolumeSource,
    HostPathVolumeSource, ObjectFieldSelector, PersistentVolumeClaimVolumeSource, Volume,
    VolumeMount,
};
use roundhouse_api::CheckpointVolume;
use roundhouse_contract::trainer::DataVolume;
use roundhouse_contract::{labels, paths};
use roundhouse_planner::ValidatedJob;

const PODINFO: &str = "roundhouse-podinfo";
const DATA: &str = "roundhouse-data";
const CHECKPOINTS: &str = "roundhouse-checkpoints";
/// Memory volumes: name and where they are mounted. NCCL and Gloo need `/dev/shm`.
const MEMORY: [(&str, &str); 2] = [
    ("roundhouse-run", paths::RUN_DIR),
    ("roundhouse-shm", "/dev/shm"),
];
const TMP: (&str, &str) = ("roundhouse-tmp", "/tmp");

pub(super) fn volumes(job: &ValidatedJob) -> Vec<Volume> {
    let mut all = vec![Volume {
        name: PODINFO.to_owned(),
        downward_api: Some(DownwardAPIVolumeSource {
            items: Some(vec![
                annotation(paths::MEMBERSHIP_FILE, labels::MEMBERSHIP),
                annotation(paths::TRAINER_CONFIG_FILE, labels::TRAINER_CONFIG),
            ]),
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
    all.push(empty(TMP.0, None));
    all.extend(job.trainer.data.volume.as_ref().map(data));
    all.extend(job.checkpoint.as_ref().map(|c| checkpoints(&c.volume)));
    all
}

pub(super) fn mounts(job: &ValidatedJob) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    let mut all = vec![
        mount(PODINFO, paths::PODINFO_DIR, true),
        mount(TMP.0, TMP.1, false),
    ];
    all.extend(MEMORY.iter().map(|(name, path)| mount(name, path, false)));
    if job.trainer.data.volume.is_some() {
        all.push(mount(DATA, paths::DATA_DIR, true));
    }
    if job.checkpoint.is_some() {
        all.push(mount(CHECKPOINTS, paths::CHECKPOINT_DIR, false));
    }
    all
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

fn data(volume: &DataVolume) -> Volume {
    let DataVolume {
        config_map,
        persistent_volume_claim,
    } = volume;
    Volume {
        name: DATA.to_owned(),
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
        // A directory that is missing stops the pod with a clear event; one that the kubelet made would be
        // root's, and nobody could write to it.
        host_path: host_path.as_ref().map(|source| HostPathVolumeSource {
            path: source.path.clone(),
            type_: Some("Directory".to_owned()),
        }),
        ..Volume::default()
    }
}
