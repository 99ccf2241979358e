//! Converts Kubeflow's PyTorchJob (`kubeflow.org/v1`).
//!
//! Fields: <https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/>.

use anyhow::ensure;
use serde_json::{Value, json};

use super::{Draft, pod};

const READ: [&str; 17] = [
    "spec.nprocPerNode",
    "spec.elasticPolicy.minReplicas",
    "spec.elasticPolicy.maxReplicas",
    "spec.elasticPolicy.nProcPerNode",
    // Roundhouse has no rendezvous to configure.
    "spec.elasticPolicy.rdzvBackend",
    "spec.elasticPolicy.rdzvHost",
    "spec.elasticPolicy.rdzvPort",
    "spec.elasticPolicy.rdzvId",
    "spec.elasticPolicy.rdzvConf",
    "spec.elasticPolicy.standalone",
    "spec.runPolicy.suspend",
    "spec.runPolicy.cleanPodPolicy",
    "spec.runPolicy.activeDeadlineSeconds",
    "spec.runPolicy.ttlSecondsAfterFinished",
    "spec.runPolicy.backoffLimit",
    "spec.pytorchReplicaSpecs.Master",
    "spec.pytorchReplicaSpecs.Worker",
];

pub(super) fn draft(document: &Value) -> anyhow::Result<Draft> {
    let mut draft = Draft::of(document);
    let spec = &document["spec"];
    let (master, worker) = (
        &spec["pytorchReplicaSpecs"]["Master"],
        &spec["pytorchReplicaSpecs"]["Worker"],
    );
    let count = |replica: &Value| match replica {
        Value::Null => 0,
        replica => replica["replicas"].as_u64().unwrap_or(1),
    };
    let replicas = count(master) + count(worker);
    ensure!(replicas > 0, "spec.pytorchReplicaSpecs has no replicas");
    let is_worker = count(worker) > 0;
    let (role, chosen) = if is_worker {
        ("Worker", worker)
    } else {
        ("Master", master)
    };
    if is_worker && !master.is_null() && master["template"] != worker["template"] {
        draft.note("spec.pytorchReplicaSpecs.Master.template differs from that of Worker, which now applies to all workers");
    }
    let path = format!("spec.pytorchReplicaSpecs.{role}.template");
    let (template, from_command) =
        pod::template(&mut draft, &chosen["template"], "pytorch", &path)?;
    let mut workers = json!({"replicas": replicas, "template": template});
    elastic(&mut draft, &spec["elasticPolicy"], &mut workers);
    let procs = [
        &spec["nprocPerNode"],
        &spec["elasticPolicy"]["nProcPerNode"],
    ]
    .into_iter()
    .find_map(number);
    if let Some(procs) = procs.or(from_command.map(u64::from)) {
        workers["procsPerWorker"] = json!(procs);
    }
    draft.set("workers", workers);
    restarts(&mut draft, chosen, role);
    run_policy(&mut draft, &spec["runPolicy"]);
    if is_worker && count(master) > 0 {
        // A PyTorchJob succeeds when its master, which is rank 0, completes.
        draft.set("successPolicy", json!("RankZero"));
    }
    draft.note_unread(document, &READ);
    Ok(draft)
}

/// A number, also if it is written as a string. `auto` and `gpu` need no field: a TrainingJob
/// chooses the number of processes in the same way by default.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn elastic(draft: &mut Draft, policy: &Value, workers: &mut Value) {
    let replicas = workers["replicas"].as_u64().unwrap_or(1);
    for (field, is_sound) in [
        ("minReplicas", u64::le as fn(&u64, &u64) -> bool),
        ("maxReplicas", u64::ge as fn(&u64, &u64) -> bool),
    ] {
        match policy[field].as_u64() {
            Some(number) if is_sound(&number, &replicas) => workers[field] = json!(number),
            Some(number) => draft.note(format!(
                "spec.elasticPolicy.{field}: {number} does not fit {replicas} replicas"
            )),
            None => {}
        }
    }
    draft.leave_out(
        policy,
        "spec.elasticPolicy",
        &[
            (
                "metrics",
                "create a HorizontalPodAutoscaler for the TrainingJob: it has a scale subresource",
            ),
            (
                "maxRestarts",
                "set failurePolicy.backoffLimit or maxIncidents",
            ),
        ],
    );
}

fn restarts(draft: &mut Draft, replica: &Value, role: &str) {
    let path = format!("spec.pytorchReplicaSpecs.{role}.restartPolicy");
    match replica["restartPolicy"].as_str() {
        Some("ExitCode") => draft.note(format!(
            "{path} ExitCode: exit codes 1 to 127 fail a PyTorchJob; write failurePolicy.rules with onExitCodes for the codes that must fail this job"
        )),
        Some("Never") => draft.note(format!(
            "{path} Never: Roundhouse restarts a failed worker; set failurePolicy.backoffLimit to 0 if a failure must fail the job"
        )),
        _ => {}
    }
}

fn run_policy(draft: &mut Draft, policy: &Value) {
    for field in [
        "suspend",
        "cleanPodPolicy",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
    ] {
        draft.set(field, policy[field].clone());
    }
    if let Some(limit) = policy["backoffLimit"].as_u64() {
        draft.set("failurePolicy", json!({"backoffLimit": limit}));
    }
    draft.leave_out(
        policy,
        "spec.runPolicy",
        &[
            ("schedulingPolicy", "name the gang scheduler in scheduling.gang, its queue in scheduling.queueName and the priority class in scheduling.priorityClassName"),
            ("managedBy", "set spec.managedBy if another controller manages the TrainingJob"),
        ],
    );
}
