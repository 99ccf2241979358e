//! `spec.checkpoint`: where the state is saved, how often, and how many checkpoints are kept.
#![allow(
    unreachable_pub,
    reason = "KubeSchema repeats the struct inside a function"
)]

use kube::KubeSchema;
use roundhouse_contract::BestMetric;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity;

/// Where and when the state of training is saved. Independent of the intervals, a checkpoint is
/// written when training ends and when workers that have the newest state are asked to leave
/// (suspension, deletion, a drain).
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// A volume that all workers can write to at the same time. It is mounted at `/checkpoints`.
    /// The job writes below `<namespace>/<job name>`, so jobs can share a volume, and a job that is
    /// deleted and applied again under its name continues from its state.
    pub volume: CheckpointVolume,
    /// Number of committed steps between checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub every_steps: Option<u64>,
    /// Age in seconds of the newest checkpoint at which the next one is written. 0: the age does
    /// not count. Default: 600, or, with `everySteps`, the age does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_592_000))]
    pub every_seconds: Option<u64>,
    /// Number of newest checkpoints that are kept: at least two, in case the newest is damaged.
    #[serde(default = "default_keep")]
    #[schemars(range(min = 2, max = 1_000))]
    pub keep: u32,
    /// Also keeps the best checkpoint, by the results of evaluations. After an evaluation that
    /// is better than all before it, the state of that step is saved. `best.json` in the job's
    /// directory names it. Only with `trainer`, which evaluates: a script of your own keeps
    /// its best state itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// Also keeps copies of the state in each pod. If all processes that hold the state die, and
    /// the pods of a worker stay, training continues from their copies and not from the older
    /// checkpoint.
    /// Only for jobs whose processes stay for all generations: the built-in trainer and scripts
    /// that join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalCopies>,
}

/// Copies of the state in a volume of each pod. It outlives processes and containers, but not the
/// pod.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.sizeLimit.matches('^[1-9][0-9]{0,11}(Ki|Mi|Gi|Ti)?$')")
        .message("checkpoint.local.sizeLimit must be a whole number of bytes, or one with Ki, Mi, Gi or Ti, such as 4Gi")
)]
pub struct LocalCopies {
    /// Number of committed steps between two copies. If all processes die, at most this many steps
    /// are repeated, and those that were committed while a copy was written. A copy that is due
    /// while the last one is being written is skipped. With 1 and `peerCopies`, each step waits
    /// for at most 5 s until the copy of the step before is in both pods.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub every_steps: u64,
    /// Where the copies are: in the memory of the node or on its disk.
    #[serde(default)]
    pub medium: CopyMedium,
    /// Number of other pods, on other nodes, that hold copies of a pod's state, too: with 1, the
    /// job may lose any pod with its node and continues from the copies in other pods. The pods of
    /// a replica of several pods hold them for each other (`workers.podsPerReplica`). For workers
    /// of one pod, a spare holds those of the worker with rank 0, so `workers.spares` must be at
    /// least 1. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1))]
    pub peer_copies: Option<u32>,
    /// Size of the volume, such as `4Gi`. It must hold two copies of the state that the pod's
    /// processes hold, and with `peerCopies` in a replica of several pods four. In a replica of
    /// several pods, with room for one more, processes save their last state when the replica loses
    /// one of them. In memory the volume counts against the memory limit of the container. Its
    /// processes also keep a buffer of the size of one copy.
    #[schemars(length(min = 1, max = 14))]
    pub size_limit: String,
}

/// Where a pod keeps copies.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyMedium {
    /// The memory of the node: fast, and lost if the node restarts.
    #[default]
    Memory,
    /// The disk on which the node keeps the files of its pods.
    Disk,
}

impl LocalCopies {
    /// [`Self::size_limit`] in bytes; `None` if it is not of the form that the schema requires.
    #[must_use]
    pub fn max_bytes(&self) -> Option<u64> {
        let digits = self
            .size_limit
            .trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let unit = &self.size_limit[digits.len()..];
        let is_allowed = is_whole && matches!(unit, "" | "Ki" | "Mi" | "Gi" | "Ti");
        let bytes = quantity::bytes(&self.size_limit).filter(|bytes| *bytes > 0)?;
        is_allowed.then_some(bytes)
    }
}

/// Seconds between checkpoints if the job sets no interval. It bounds the loss if all
/// workers die at once.
const DEFAULT_SECONDS: u64 = 600;

impl Checkpoint {
    /// Whether other pods hold copies of a pod's state, too.
    #[must_use]
    pub fn has_peer_copies(&self) -> bool {
        let local = self.local.as_ref();
        local.is_some_and(|local| local.peer_copies > Some(0))
    }

    /// Age in seconds at which the next checkpoint is due; `None` if the age does not count.
    #[must_use]
    pub const fn seconds(&self) -> Option<u64> {
        match (self.every_steps, self.every_seconds) {
            (None, None) => Some(DEFAULT_SECONDS),
            (_, Some(0)) => None,
            (_, given) => given,
        }
    }
}

/// Which checkpoint is the best one.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Best {
    /// The metric that decides: the best checkpoint has the smallest `loss` or
    /// `perplexity`, or the largest `top1` or `top5`. Models of images have `top1` and
    /// `top5`; `gpt2`, `bert`, `llama` and `switch` have `perplexity`.
    pub metric: BestMetric,
}

const fn default_keep() -> u32 {
    3
}

/// The volume for checkpoints: exactly one of these fields. Workers run as user and group 65532
/// unless the template says otherwise.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.persistentVolumeClaim) != has(self.hostPath)")
        .message("give exactly one of checkpoint.volume.persistentVolumeClaim, checkpoint.volume.hostPath")
)]
pub struct CheckpointVolume {
    /// A PersistentVolumeClaim of the job's namespace. With workers on several nodes
    /// it must be `ReadWriteMany`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<CheckpointClaim>,
    /// A directory of the nodes: either the same network file system on every node, or a
    /// directory of the only node on which all workers run. It must exist and be writable for the
    /// workers' user: Kubernetes does not change its owner. The *baseline* and *restricted* Pod
    /// Security Standards refuse it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<CheckpointHostPath>,
}

/// A reference to a PersistentVolumeClaim.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointClaim {
    /// Name of the PersistentVolumeClaim.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
}

/// A directory of the node.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.path.startsWith('/') && !self.path.split('/').exists(part, part == '..')")
        .message("checkpoint.volume.hostPath.path must be absolute and without '..'")
)]
pub struct CheckpointHostPath {
    /// Absolute path of the directory.
    #[schemars(length(min = 1, max = 1_024))]
    pub path: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_limit_is_a_number_of_bytes() {
        for (size_limit, expected) in [
            ("7", Some(7)),
            ("3Ki", Some(3 << 10)),
            ("12Mi", Some(12 << 20)),
            ("4Gi", Some(4 << 30)),
            ("1Ti", Some(1 << 40)),
            ("99999999999Ti", None),
            ("0Gi", None),
            ("1.5Gi", None),
            ("+1Gi", None),
            ("4G", None),
            ("Gi", None),
            ("", None),
        ] {
            let copies = LocalCopies {
                every_steps: 1,
                medium: CopyMedium::Memory,
                peer_copies: None,
                size_limit: size_limit.to_owned(),
            };
            assert_eq!(copies.max_bytes(), expected, "{size_limit}");
        }
    }

    #[test]
    fn default_interval_is_ten_minutes() {
        for (steps, seconds, expected) in [
            (None, None, Some(600)),
            (Some(100), None, None),
            (None, Some(60), Some(60)),
            (Some(100), Some(60), Some(60)),
            (None, Some(0), None),
            (Some(100), Some(0), None),
        ] {
            let checkpoint = Checkpoint {
                volume: CheckpointVolume::default(),
                every_steps: steps,
                every_seconds: seconds,
                keep: 3,
                best: None,
                local: None,
            };
            assert_eq!(checkpoint.seconds(), expected, "{steps:?} {seconds:?}");
        }
    }
}
