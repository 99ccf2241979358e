//! Fixtures: a job as the API server and its agents would tell of it, built step by step.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use roundhouse_contract::{Progress, labels};
use serde_json::{Value, json};

use crate::facts::{Facts, Told, metrics};
use crate::local::record::Record;

/// The moment at which everything is read.
pub(crate) fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// So many seconds before that.
pub(crate) fn before(seconds: i64) -> String {
    (now() - SignedDuration::from_secs(seconds)).to_string()
}

/// A job in the making.
pub(crate) struct Case {
    /// The TrainingJob.
    pub(crate) job: Value,
    /// Its pods.
    pub(crate) pods: Vec<Value>,
    /// Events.
    pub(crate) events: Vec<Value>,
    told: BTreeMap<String, Told>,
}

/// A job `digits` of two workers that the operator has accepted.
pub(crate) fn job() -> Case {
    let job = json!({
        "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "digits", "namespace": "ml", "uid": "u-1", "creationTimestamp": before(600)},
        "spec": {
            "workers": {"replicas": 2},
            "trainer": {"model": {"name": "mlp"}, "data": {"format": "idx"}, "globalBatchSize": 10, "epochs": 1},
        },
        "status": {
            "startTime": before(60),
            "workers": {"wanted": 2, "ready": 0, "active": 0, "summary": "0/2"},
        },
    });
    Case {
        job,
        pods: Vec::new(),
        events: Vec::new(),
        told: BTreeMap::new(),
    }
    .condition("Accepted", "True", "Valid", "2 workers with 1 process each")
}

impl Case {
    /// Puts a condition in front.
    pub(crate) fn condition(
        mut self,
        kind: &str,
        status: &str,
        reason: &str,
        message: &str,
    ) -> Self {
        let condition = json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": before(30),
        });
        let conditions = &mut self.job["status"]["conditions"];
        let mut all = conditions.as_array().cloned().unwrap_or_default();
        all.insert(0, condition);
        *conditions = json!(all);
        self
    }

    /// It does not run, for a reason.
    pub(crate) fn waits(self, reason: &str, message: &str) -> Self {
        self.condition("Running", "False", reason, message)
    }

    /// It trains in generation 3 with so many workers, which are made with it, at step 480 of 1000.
    pub(crate) fn trains(mut self, nodes: u32) -> Self {
        let wanted = self.job["spec"]["workers"]["replicas"].as_u64().unwrap();
        let status = &mut self.job["status"];
        status["membership"] =
            json!({"generation": 3, "worldSize": nodes, "nodes": nodes, "members": "m"});
        status["workers"] = json!({"wanted": wanted, "ready": nodes, "active": nodes, "summary": format!("{nodes}/{wanted}")});
        let mut progress = serde_json::to_value(progress()).unwrap();
        progress["percent"] = json!("48%");
        progress["updatedAt"] = json!(before(5));
        status["progress"] = progress;
        let mut case = self.condition(
            "Running",
            "True",
            "Training",
            &format!("generation 3: {nodes} workers, world size {nodes}"),
        );
        for index in 0..nodes {
            case = case.member(index);
        }
        case
    }

    /// A pod that is placed, with a state of its trainer container.
    pub(crate) fn pod(
        mut self,
        index: u32,
        state: &Value,
        ready: bool,
        restarts: u32,
        last: &Value,
    ) -> Self {
        self.pods.push(json!({
            "metadata": {
                "name": format!("digits-worker-{index}-0"), "namespace": "ml", "uid": format!("p-{index}"),
                "labels": {labels::WORKER_INDEX: index.to_string(), labels::ATTEMPT: "0"},
            },
            "spec": {"nodeName": format!("node-{index}"), "containers": []},
            "status": {"phase": "Running", "containerStatuses": [{
                "name": "trainer", "ready": ready, "restartCount": restarts, "image": "i", "imageID": "i",
                "state": state, "lastState": last,
            }]},
        }));
        self
    }

    /// A worker that trains in generation 3 with its index as node rank.
    pub(crate) fn member(self, index: u32) -> Self {
        let mut case = self.lobby(index, true);
        let document = json!({
            "generation": 3, "action": "Join", "nodeRank": index, "nodes": 2, "procsPerWorker": 1,
            "master": {"address": "10.0.0.1", "port": 29500}, "members": "m",
            "incarnation": {"podUid": format!("p-{index}"), "restarts": 0}, "issuedAt": before(50),
        });
        let pod = case.pods.last_mut().unwrap();
        pod["metadata"]["annotations"] = json!({labels::MEMBERSHIP: document.to_string()});
        case
    }

    /// A worker that runs and is in no generation; without `ready` it prepares.
    pub(crate) fn lobby(self, index: u32, ready: bool) -> Self {
        self.pod(
            index,
            &json!({"running": {"startedAt": before(50)}}),
            ready,
            0,
            &json!({}),
        )
    }

    /// A worker whose container waits.
    pub(crate) fn container_waits(self, index: u32, reason: &str, message: &str) -> Self {
        self.pod(
            index,
            &json!({"waiting": {"reason": reason, "message": message}}),
            false,
            0,
            &json!({}),
        )
    }

    /// A worker whose sidecar waits, and whose trainer is ready.
    pub(crate) fn sidecar_waits(self, index: u32, reason: &str, message: &str) -> Self {
        let mut case = self.lobby(index, true);
        let status = &mut case.pods.last_mut().unwrap()["status"];
        status["phase"] = json!("Pending");
        let sidecar = json!({
            "name": "proxy", "ready": false, "restartCount": 0, "image": "i", "imageID": "",
            "state": {"waiting": {"reason": reason, "message": message}},
        });
        status["containerStatuses"]
            .as_array_mut()
            .unwrap()
            .push(sidecar);
        case
    }

    /// A worker whose container has ended five times, the last time so.
    pub(crate) fn crashes(self, index: u32, code: i32, reason: &str, words: &str) -> Self {
        let message = json!({
            "reason": "Crashed", "generation": 0, "step": 0, "message": words,
        });
        let last = json!({"terminated": {
            "exitCode": code, "reason": reason, "message": message.to_string(), "finishedAt": before(20),
        }});
        let state = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}});
        self.pod(index, &state, false, 5, &last)
    }

    /// A worker whose init container has failed twice; exit code and words are those of the last failure.
    pub(crate) fn init_fails(self, index: u32, name: &str, code: i32, words: &str) -> Self {
        let state = json!({"waiting": {"reason": "PodInitializing"}});
        let mut case = self.pod(index, &state, false, 0, &json!({}));
        let status = &mut case.pods.last_mut().unwrap()["status"];
        status["phase"] = json!("Pending");
        status["initContainerStatuses"] = json!([{
            "name": name, "ready": false, "restartCount": 1, "image": "i", "imageID": "i",
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
            "lastState": {"terminated": {"exitCode": code, "reason": "Error", "message": words}},
        }]);
        case
    }

    /// A worker that the scheduler finds no node for.
    pub(crate) fn unschedulable(self, index: u32, words: &str) -> Self {
        let mut case = self.pod(index, &json!({}), false, 0, &json!({}));
        let pod = case.pods.last_mut().unwrap();
        pod["spec"]["nodeName"] = Value::Null;
        pod["status"] = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words},
        ]});
        case
    }

    /// The newest failure.
    pub(crate) fn last_failure(mut self, reason: &str, code: i32, message: &str) -> Self {
        self.job["status"]["lastFailure"] = json!({
            "time": before(90), "worker": "digits-worker-1-0", "rank": 1, "node": "node-1", "reason": reason,
            "exitCode": code, "step": 480, "message": message,
        });
        self.job["status"]["incidents"] = json!({"total": 1, "sinceProgress": 1, "lastStep": 480});
        self
    }

    /// Sets a field of the job: `("spec/suspend", true)`.
    pub(crate) fn with(mut self, path: &str, value: Value) -> Self {
        let mut at = &mut self.job;
        for key in path.split('/') {
            at = &mut at[key];
        }
        *at = value;
        self
    }

    /// What the agent of a worker tells.
    pub(crate) fn told(mut self, index: u32, progress: Progress, exposition: &str) -> Self {
        let told = Told {
            progress: Some(progress),
            restarts: None,
            metrics: metrics::parse(exposition),
        };
        self.told.insert(format!("digits-worker-{index}-0"), told);
        self
    }

    /// What a run in a directory would have written.
    pub(crate) fn record(self) -> Record {
        let Facts {
            job,
            pods,
            events,
            told,
            now: _,
        } = self.facts();
        Record {
            job,
            pods,
            events,
            told,
        }
    }

    /// What was read.
    pub(crate) fn facts(self) -> Facts {
        let Self {
            job,
            pods,
            events,
            told,
        } = self;
        Facts {
            job: serde_json::from_value(job).unwrap(),
            pods: serde_json::from_value(json!(pods)).unwrap(),
            events: serde_json::from_value(json!(events)).unwrap(),
            told,
            now: now(),
        }
    }
}

/// Step 480 of 1000 in generation 3.
pub(crate) fn progress() -> Progress {
    Progress {
        generation: 3,
        world_size: 2,
        step: 480,
        total_steps: 1_000,
        epoch: 2,
        loss: Some(0.25),
        samples_per_second: 100.0,
        eval_perplexity: Some(12.5),
        ..Progress::default()
    }
}
