//! Test fixtures: a job as the API server and its agents would report it, built step by step.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use roundhouse_contract::{Progress, labels};
use serde_json::{Value, json};

use crate::facts::{AgentReport, Facts, metrics};
use crate::local::record::Record;

/// The time of every read.
pub(crate) fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// The time `seconds` before [`now`].
pub(crate) fn before(seconds: i64) -> String {
    (now() - SignedDuration::from_secs(seconds)).to_string()
}

/// Builder of a job with its pods, events and agents' reports.
pub(crate) struct Case {
    pub(crate) job: Value,
    pub(crate) pods: Vec<Value>,
    pub(crate) events: Vec<Value>,
    reports: BTreeMap<String, AgentReport>,
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
        reports: BTreeMap::new(),
    }
    .condition("Accepted", "True", "Valid", "2 workers with 1 process each")
}

impl Case {
    /// Inserts a condition before the others.
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

    /// The job does not train, for this reason.
    pub(crate) fn waits(self, reason: &str, message: &str) -> Self {
        self.condition("Running", "False", reason, message)
    }

    /// The job trains in generation 3 at step 480 of 1000, with this number of workers, which it
    /// adds.
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

    /// Adds a pod on a node, with this state of its trainer container.
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

    /// Adds a worker that trains in generation 3 with its index as node rank.
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

    /// Adds a running worker outside a generation; without `ready` it still prepares.
    pub(crate) fn lobby(self, index: u32, ready: bool) -> Self {
        self.pod(
            index,
            &json!({"running": {"startedAt": before(50)}}),
            ready,
            0,
            &json!({}),
        )
    }

    /// Adds a worker whose container waits.
    pub(crate) fn container_waits(self, index: u32, reason: &str, message: &str) -> Self {
        self.pod(
            index,
            &json!({"waiting": {"reason": reason, "message": message}}),
            false,
            0,
            &json!({}),
        )
    }

    /// Adds a worker whose sidecar waits while its trainer is ready.
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

    /// Adds a worker whose container has ended five times, the last time as given.
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

    /// Adds a worker whose init container has failed twice, the last time as given.
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

    /// Adds a worker for which the scheduler finds no node.
    pub(crate) fn unschedulable(self, index: u32, words: &str) -> Self {
        let mut case = self.pod(index, &json!({}), false, 0, &json!({}));
        let pod = case.pods.last_mut().unwrap();
        pod["spec"]["nodeName"] = Value::Null;
        pod["status"] = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words},
        ]});
        case
    }

    /// Sets the last failure, which counts as one incident.
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

    /// Adds the report of a worker's agent, with these metrics.
    pub(crate) fn reports(mut self, index: u32, progress: Progress, exposition: &str) -> Self {
        let report = AgentReport {
            progress: Some(progress),
            restarts: None,
            metrics: metrics::parse(exposition),
        };
        self.reports
            .insert(format!("digits-worker-{index}-0"), report);
        self
    }

    /// The record that a run without a cluster would have written.
    pub(crate) fn record(self) -> Record {
        let Facts {
            job,
            pods,
            events,
            reports,
            now: _,
        } = self.facts();
        Record {
            job,
            pods,
            events,
            reports,
        }
    }

    pub(crate) fn facts(self) -> Facts {
        let Self {
            job,
            pods,
            events,
            reports,
        } = self;
        Facts {
            job: serde_json::from_value(job).unwrap(),
            pods: serde_json::from_value(json!(pods)).unwrap(),
            events: serde_json::from_value(json!(events)).unwrap(),
            reports,
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
