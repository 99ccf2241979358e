//! Readers of documents that pods, agents, scripts and users write.

use roundhouse_api::TrainingJob;
use roundhouse_contract::{
    Membership, ProcessRestarts, Progress, RankStatus, ScriptProgress, TerminationMessage,
    TrainerConfig,
};
use roundhouse_planner::validate;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::Target;

/// The membership document, which the operator writes and a worker reads.
pub const MEMBERSHIP: Target = Target {
    name: "membership",
    read: |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        if let Ok(Some(document)) = Membership::parse(text) {
            let _ = (document.world_size(), document.rank(0));
            let again = document.to_json().map(|text| Membership::parse(&text));
            assert_eq!(again.unwrap().unwrap(), Some(document));
        }
    },
    seeds: || {
        texts(&[json!({
            "generation": 3, "action": "Join", "nodeRank": 1, "nodes": 2, "procsPerWorker": 1,
            "master": {"address": "10.0.0.1", "port": 29500}, "members": "0123456789abcdef",
            "incarnation": {"podUid": "u", "restarts": 0}, "issuedAt": "2026-01-01T00:00:00Z",
        })])
    },
};

/// The progress that an agent reports to the operator, and a script to its agent.
pub const PROGRESS: Target = Target {
    name: "progress",
    read: |bytes| {
        reads_back::<Progress>(bytes);
        if let Some(script) = reads_back::<ScriptProgress>(bytes) {
            let _ = script.within(1, 2);
        }
    },
    seeds: || {
        texts(&[json!({
            "generation": 1, "worldSize": 2, "step": 10, "totalSteps": 20, "epoch": 1, "loss": 0.5, "skippedSteps": 1,
            "repeatedSteps": 2, "lastRepeat": {"first": 6, "last": 7, "after": 5, "source": "Memory", "rank": 1},
            "samplesPerSecond": 3.5, "evalAccuracy": 0.5, "checkpointStep": 9, "checkpointAt": "2026-01-01T00:00:00Z",
            "bestCheckpoint": {"step": 9, "metric": "loss", "value": 0.5}, "straggler": {"nodeRank": 1, "factor": 2.0},
        })])
    },
};

/// The termination message of a worker.
pub const TERMINATION: Target = Target {
    name: "termination",
    read: |bytes| {
        let message = std::str::from_utf8(bytes).ok();
        if let Some(message) = message.and_then(TerminationMessage::parse) {
            let text = message.to_json().unwrap();
            assert!(TerminationMessage::parse(&text).is_some(), "{text}");
        }
    },
    seeds: || {
        texts(&[json!({
            "reason": "DataInvalid", "rank": 1, "generation": 2, "step": 3, "message": "a file is cut off",
        })])
    },
};

/// The status file of a rank, which its agent reads.
pub const RANK_STATUS: Target = Target {
    name: "rank-status",
    read: |bytes| {
        reads_back::<RankStatus>(bytes);
        reads_back::<ProcessRestarts>(bytes);
    },
    seeds: || {
        texts(&[
            json!({"phase": "Training", "rank": 1, "generation": 4, "step": 17}),
            json!({"phase": "Lobby", "generation": 0, "step": 0}),
        ])
    },
};

/// The configuration that the operator gives to the built-in trainer.
pub const TRAINER_CONFIG: Target = Target {
    name: "trainer-config",
    read: |bytes| {
        if let Some(config) = reads_back::<TrainerConfig>(bytes) {
            let _ = config.validate();
        }
    },
    seeds: || texts(&[trainer()]),
};

/// A TrainingJob of a user. The API server has checked it against the installed CRD, whose version
/// may differ from the operator's.
pub const TRAINING_JOB: Target = Target {
    name: "training-job",
    read: |bytes| {
        if let Some(job) = reads_back::<TrainingJob>(bytes) {
            let _ = validate(&job).map_err(|invalid| invalid.to_string());
        }
    },
    seeds: || {
        let metadata = json!({"name": "digits", "namespace": "ml", "uid": "u", "generation": 1});
        let job = |spec| {
            json!({
                "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec,
            })
        };
        texts(&[
            job(json!({
                "workers": {"replicas": 4, "minReplicas": 2, "maxReplicas": 8, "template": {"spec": {"containers": [
                    {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                ]}}},
                "elastic": {"joinWindowSeconds": 10, "onScale": "ScaleBatch"},
                "failurePolicy": {"backoffLimit": 3, "rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]},
                "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "c"}}, "everySteps": 100},
                "trainer": trainer(),
            })),
            job(json!({
                "elastic": {"mode": "Restart"},
                "workers": {"replicas": 2, "template": {"spec": {"containers": [
                    {"name": "trainer", "image": "pytorch:2", "command": ["python"], "args": ["train.py"]},
                ]}}},
            })),
            job(json!({
                "workers": {"replicas": 2, "template": {"spec": {"containers": [
                    {"name": "trainer", "image": "pytorch:2", "command": ["python", "train.py"]},
                ]}}},
                "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "c"}}, "everySeconds": 60},
            })),
        ])
    },
};

fn trainer() -> serde_json::Value {
    json!({
        "model": {"name": "mlp", "hidden": [16, 16]}, "data": {"format": "idx", "path": "digits"},
        "optimizer": {"name": "sgd", "learningRate": 0.05, "momentum": 0.9},
        "schedule": {"name": "cosine", "warmupSteps": 50}, "globalBatchSize": 64, "epochs": 2, "seed": 1,
    })
}

fn texts(documents: &[serde_json::Value]) -> Vec<Vec<u8>> {
    let text = |document: &serde_json::Value| document.to_string().into_bytes();
    documents.iter().map(text).collect()
}

/// Parses a document. If it is accepted, checks that its serialized form is accepted, too.
fn reads_back<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Option<T> {
    let document: T = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_vec(&document).unwrap();
    let again = serde_json::from_slice::<T>(&text);
    assert!(again.is_ok(), "{}", String::from_utf8_lossy(&text));
    Some(document)
}
