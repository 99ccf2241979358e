//! A scenario for the fake API server, its kubelets and the agents: a job that has grown, lost two
//! workers and trains again, and three other jobs.

use std::fmt::Write;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// UID of [`JOB`], the job that has workers.
const UID: &str = "11111111-2222-3333-4444-555555555555";
const JOB: &str = "gpt2-romeo";
const NUM_WORKERS: usize = 8;
/// Training time of the job, in seconds.
const TRAINED: i64 = 2_280;
const STEP: u64 = 4_180;

pub(crate) struct Scenario {
    pub(crate) jobs: Vec<Value>,
    pub(crate) pods: Vec<Value>,
    pub(crate) events: Vec<Value>,
    /// The log lines of rank 0.
    pub(crate) lines: Vec<String>,
}

impl Scenario {
    /// The log of a pod, with the options of a query.
    pub(crate) fn log(&self, pod: &str, query: &str) -> Option<String> {
        if query.contains("previous=true") && !pod.contains("worker-5") {
            return None;
        }
        let lines = if pod.contains("worker-0") {
            self.lines.clone()
        } else {
            vec![format!("{} [rank 7] joins generation 4", ago(600))]
        };
        let tail = query
            .split('&')
            .find_map(|it| it.strip_prefix("tailLines="));
        let tail = tail.map_or(lines.len(), |tail| tail.parse().unwrap());
        let skipped = lines.len().saturating_sub(tail);
        Some(
            lines[skipped..]
                .iter()
                .map(|line| line.clone() + "\n")
                .collect(),
        )
    }

    /// The answer of an agent to a request for `what`.
    pub(crate) fn agent(&self, pod: &str, what: &str) -> Option<String> {
        let found = self.pods.iter().find(|it| it["metadata"]["name"] == *pod)?;
        let index: usize = found["metadata"]["labels"]["roundhouse.dev/worker-index"]
            .as_str()?
            .parse()
            .ok()?;
        match what {
            "metrics" => {
                let step = if index == 5 { STEP - 1 } else { STEP };
                Some(format!(
                    "roundhouse_train_step{{rank=\"{index}\"}} {step}\n"
                ))
            }
            "progress" => Some(progress().to_string()),
            "restarts" => Some(json!({"total": 0}).to_string()),
            _ => None,
        }
    }
}

fn ago(seconds: i64) -> String {
    (Timestamp::now() - SignedDuration::from_secs(seconds)).to_string()
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, seconds: i64) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": ago(seconds)})
}

fn job(name: &str, uid: &str, status: &Value) -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "ml", "uid": uid, "creationTimestamp": ago(TRAINED + 95)},
        "spec": {
            "workers": {"replicas": NUM_WORKERS, "minReplicas": 4},
            "checkpoint": {"volume": {"hostPath": {"path": "/srv"}}, "everySteps": 500, "everySeconds": 300, "keep": 3},
            "trainer": {"model": {"name": "gpt2"}, "data": {"format": "text"}, "globalBatchSize": 64, "epochs": 1},
        },
        "status": status,
    })
}

fn progress() -> Value {
    json!({
        "generation": 4, "worldSize": 8, "step": STEP, "totalSteps": 10_000, "epoch": 0, "loss": 3.2714,
        "samplesPerSecond": 117.3, "evalPerplexity": 26.41, "percent": "41%", "updatedAt": ago(4),
    })
}

fn ran() -> Value {
    json!({
        "startTime": ago(TRAINED + 95),
        "conditions": [
            condition("Running", "True", "Training", "generation 4: 8 workers, world size 8", 805),
            condition("Accepted", "True", "Valid", "8 workers with 1 process each", TRAINED + 95),
        ],
        "membership": {"generation": 4, "worldSize": 8, "nodes": 8, "members": "m"},
        "workers": {"wanted": 8, "ready": 8, "active": 8, "summary": "8/8"},
        "progress": progress(), "checkpoint": {"step": 4_000, "time": ago(98)},
        "incidents": {"total": 2, "sinceProgress": 0, "lastStep": 2_643, "lastGeneration": 3},
        "lastFailure": {
            "time": ago(840), "worker": "gpt2-romeo-worker-3-0", "rank": 3, "node": "gpu-3", "reason": "HardwareFault",
            "exitCode": 77, "step": 2_643, "message": "CUDA error: uncorrectable ECC error encountered",
        },
    })
}

fn others() -> [Value; 3] {
    let ended = json!({
        "conditions": [condition("Succeeded", "True", "Completed", "1440 steps", 400)],
        "workers": {"wanted": 2, "ready": 2, "active": 0, "summary": "2/2"},
        "membership": {"generation": 1, "worldSize": 2, "nodes": 2, "members": "m"}, "completionTime": ago(400),
        "progress": {"generation": 1, "worldSize": 2, "step": 1_440, "totalSteps": 1_440, "epoch": 60, "loss": 0.0213,
            "samplesPerSecond": 3_310.0, "percent": "100%", "updatedAt": ago(400)},
    });
    let failed = json!({
        "conditions": [condition("Failed", "True", "BackoffLimitExceeded", "7 incidents without a new step", 3_000)],
        "workers": {"wanted": 4, "ready": 0, "active": 0, "summary": "0/4"},
        "incidents": {"total": 7, "sinceProgress": 7, "lastStep": 0}, "completionTime": ago(3_000),
    });
    let waits = json!({
        "startTime": ago(120),
        "conditions": [condition("Running", "False", "Unschedulable",
            "0 of 16 workers ready; 0/12 nodes are available: 12 Insufficient nvidia.com/gpu.", 118)],
        "workers": {"wanted": 16, "ready": 0, "active": 0, "summary": "0/16"},
    });
    [
        job("digits", "u-digits", &ended),
        job("bert", "u-bert", &failed),
        job("resnet50", "u-resnet50", &waits),
    ]
}

fn pod(index: usize) -> Value {
    let attempt = usize::from(index == 3);
    let restarts = u32::from(index == 5);
    let place = json!({
        "generation": 4, "action": "Join", "nodeRank": index, "nodes": 8, "procsPerWorker": 1,
        "master": {"address": "10.0.0.1", "port": 29_500}, "members": "m",
        "incarnation": {"podUid": format!("p-{index}"), "restarts": restarts}, "issuedAt": ago(806),
    });
    let killed =
        json!({"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": ago(1_560)}});
    let last = if restarts > 0 { killed } else { json!({}) };
    json!({
        "metadata": {
            "name": format!("{JOB}-worker-{index}-{attempt}"), "namespace": "ml", "uid": format!("p-{index}"),
            "labels": {
                "roundhouse.dev/job-uid": UID, "roundhouse.dev/worker-index": index.to_string(),
                "roundhouse.dev/attempt": attempt.to_string(),
            },
            "annotations": {"roundhouse.dev/membership": place.to_string()},
        },
        "spec": {"nodeName": if attempt > 0 { "gpu-9".to_owned() } else { format!("gpu-{index}") }, "containers": []},
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "trainer", "ready": true, "restartCount": restarts, "image": "i", "imageID": "i",
            "state": {"running": {"startedAt": ago(1_200)}}, "lastState": last,
        }]},
    })
}

fn events() -> Vec<Value> {
    let event = |reason: &str, message: &str, seconds: i64| {
        let is_warning = reason == "WorkerFailed";
        json!({
            "metadata": {"name": format!("e-{seconds}"), "namespace": "ml"}, "reason": reason, "message": message,
            "type": if is_warning { "Warning" } else { "Normal" }, "lastTimestamp": ago(seconds),
            "involvedObject": {"kind": "TrainingJob", "name": JOB, "namespace": "ml", "uid": UID},
        })
    };
    vec![
        event("Accepted", "8 workers with 1 process each", TRAINED + 95),
        event(
            "GenerationIssued",
            "generation 1: 6 workers, world size 6; more are wanted: 2 workers prepare",
            TRAINED,
        ),
        event(
            "GenerationIssued",
            "generation 2: 8 workers, world size 8",
            2_040,
        ),
        event(
            "WorkerFailed",
            "gpt2-romeo-worker-5-0 rank 5 on gpu-5: Killed (exit code 137) after step 1320: killed by SIGKILL: \
            it may have run out of memory (resources.limits.memory)",
            1_559,
        ),
        event(
            "GenerationIssued",
            "generation 3: 7 workers, world size 7; more are wanted: 1 worker prepares",
            1_545,
        ),
        event(
            "WorkerFailed",
            "gpt2-romeo-worker-3-0 rank 3 on gpu-3: HardwareFault (exit code 77) after step 2643: \
            CUDA error: uncorrectable ECC error encountered",
            838,
        ),
        event(
            "GenerationIssued",
            "generation 4: 8 workers, world size 8",
            805,
        ),
    ]
}

/// The log of rank 0: a line about every six seconds, with numbers that follow the generations.
fn lines() -> Vec<String> {
    let mut lines = Vec::new();
    let (mut generation, mut noise) = (0, 1_u64);
    let num_lines = STEP / 10;
    for n in 1..=num_lines {
        let seconds = TRAINED - i64::try_from(n * TRAINED.cast_unsigned() / num_lines).unwrap();
        let (now, size, speed) = match seconds {
            2_040.. => (1, 6, 41_300),
            1_545.. => (2, 8, 54_600),
            805.. => (3, 7, 47_900),
            _ => (4, 8, 54_800),
        };
        if now != generation {
            generation = now;
            lines.push(format!(
                "{} [rank 0] generation {now}: rank 0 of {size}, store at 10.0.0.1:29500",
                ago(seconds + 2)
            ));
        }
        // A fixed pseudorandom sequence (Knuth's MMIX generator), so the picture is always the
        // same.
        noise = noise
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let shake = f64::from(u32::try_from(noise >> 40).unwrap()) / f64::from(1 << 24) - 0.5;
        let step = n * 10;
        let falls = 7.6 * (-f64::from(u32::try_from(step).unwrap()) / 700.0).exp();
        let loss = 3.25 + falls + shake * (0.10 + falls / 12.0);
        let speed = f64::from(speed) * (1.0 + shake * 0.03);
        let mut line = format!("{} [rank 0] step {step} of 10000 ", ago(seconds));
        write!(
            line,
            "({} %), epoch 0: loss {loss:.4}, rate 0.0006, {speed:.0} tokens/s",
            step / 100
        )
        .unwrap();
        lines.push(line);
    }
    lines
}

/// The scenario with all four jobs.
pub(crate) fn cluster() -> Scenario {
    let [digits, bert, resnet] = others();
    Scenario {
        jobs: vec![job(JOB, UID, &ran()), digits, bert, resnet],
        pods: (0..NUM_WORKERS).map(pod).collect(),
        events: events(),
        lines: lines(),
    }
}
