use roundhouse_contract::{Progress, Straggler};
use serde_json::{Value, json};

use super::{Situation, diagnose};
use crate::testing::{Case, before, job, progress};

/// Situation, the job, and words that summary, evidence or advice must have.
type Row = (Situation, Case, &'static [&'static str]);

fn failed(case: Case, reason: &str, message: &str) -> Case {
    case.condition("Failed", "True", reason, message)
}

fn with_pod(mut case: Case, path: &str, value: Value) -> Case {
    *case.pods.last_mut().unwrap().pointer_mut(path).unwrap() = value;
    case
}

fn before_training() -> Vec<Row> {
    vec![
        (
            Situation::NotManaged,
            job().with("spec/managedBy", json!("kueue.x-k8s.io/multikueue")),
            &["kueue.x-k8s.io/multikueue", "stop digits"],
        ),
        (
            Situation::Unseen,
            job().with("status", Value::Null),
            &["10m ago", "app.kubernetes.io/component=operator"],
        ),
        (
            Situation::InvalidSpec,
            job().condition("Accepted", "False", "InvalidSpec", "trainer.steps: must be above 0"),
            &["trainer.steps", "submit -f"],
        ),
        (
            Situation::ForbiddenByPolicy,
            job().condition(
                "Accepted",
                "False",
                "ForbiddenByPolicy",
                "spec.checkpoint.volume.hostPath.path: /srv is not allowed by policy.allow.hostPaths",
            ),
            &["policy.allow.hostPaths", "/srv", "administrator", "submit -f"],
        ),
        (
            Situation::TooManyJobs,
            job().condition("Accepted", "False", "TooManyJobs", "3 jobs of the namespace come before this one"),
            &["3 jobs", "begins by itself", "policy.maxJobsPerNamespace"],
        ),
        (
            Situation::NewerProtocol,
            job().condition("Accepted", "False", "NewerProtocol", "digits-worker-0-0 has a membership document of protocol 2"),
            &["protocol 2", "Upgrade the operator", "suspend digits", "resume digits"],
        ),
        (
            Situation::Suspended,
            job().with("spec/suspend", json!(true)).waits("Suspended", "no workers; no checkpoint is known yet"),
            &["resume digits", "no checkpoint is known"],
        ),
        (
            Situation::Resuming,
            job().waits("Resuming", "waiting for 1 terminating worker"),
            &["grace period"],
        ),
        (
            Situation::NameTaken,
            job().waits("NameTaken", "Service digits is not the job's"),
            &["Service digits", "another name"],
        ),
        (
            Situation::GangSchedulerMissing,
            job().waits("GangSchedulerMissing", "scheduling.gang Volcano: the API server does not serve podgroups.scheduling.volcano.sh; install Volcano"),
            &["does not serve podgroups", "gang: None"],
        ),
        (
            Situation::QuotaExceeded,
            job().waits("Refused", "the API server refused: pods \"a\" is forbidden: exceeded quota: small, requested: cpu=4"),
            &["describe resourcequota", "requested: cpu=4"],
        ),
        (
            Situation::NoAnswer,
            job().waits("Refused", "the API server does not answer: CreateWorker takes longer than 5 s; an admission webhook may be slow"),
            &["takes longer than 5 s", "mutatingwebhookconfigurations"],
        ),
        (
            Situation::Refused,
            job().waits("Refused", "the API server refused: violates PodSecurity \"restricted\""),
            &["PodSecurity", "workers.template"],
        ),
        (
            Situation::Unschedulable,
            job()
                .lobby(0, true)
                .unschedulable(1, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
                .waits("Unschedulable", "1 of 2 workers ready"),
            &["1 of 2 workers", "Insufficient nvidia.com/gpu", "minReplicas"],
        ),
        (
            Situation::Unschedulable,
            job()
                .unschedulable(0, "persistentvolumeclaim \"images\" not found")
                .unschedulable(1, "persistentvolumeclaim \"images\" not found")
                .waits("Unschedulable", "0 of 2 workers ready"),
            &["2 of 2 workers", "Create the PersistentVolumeClaim"],
        ),
        (
            Situation::ImagePullFailed,
            job()
                .container_waits(0, "ImagePullBackOff", "Back-off pulling image \"r/t:nope\"")
                .waits("ImagePullFailed", "0 of 2 workers ready"),
            &["r/t:nope", "imagePullSecrets"],
        ),
    ]
}

fn while_containers_are_created() -> Vec<Row> {
    vec![
        (
            Situation::ImagePullFailed,
            job()
                .sidecar_waits(
                    0,
                    "ImagePullBackOff",
                    "Back-off pulling image \"r/proxy:nope\"",
                )
                .waits("ImagePullFailed", "1 of 2 workers ready"),
            &["r/proxy:nope", "imagePullSecrets"],
        ),
        (
            Situation::ContainerCreating,
            {
                let mut case = job().waits(
                    "ContainerCreating",
                    "0 of 2 workers ready; digits-worker-0-0 does not start its containers",
                );
                case.events.push(json!({
                    "metadata": {}, "type": "Warning", "reason": "FailedMount",
                    "message": "configmap \"digits-data\" not found", "involvedObject": {"kind": "Pod", "name": "p"},
                }));
                case
            },
            &["FailedMount", "digits-data", "trainer.data"],
        ),
        (
            Situation::ContainerCreating,
            {
                let mut case = job().waits("WaitingForWorkers", "0 of 2 workers ready");
                case = case.container_waits(0, "ContainerCreating", "");
                case.events.push(json!({
                    "metadata": {}, "type": "Warning", "reason": "FailedMount",
                    "message": "configmap \"digit-data\" not found",
                    "involvedObject": {"kind": "Pod", "name": "digits-worker-0-0"},
                }));
                case
            },
            &["FailedMount", "digit-data", "trainer.data"],
        ),
    ]
}

fn while_starting() -> Vec<Row> {
    vec![
        (
            Situation::ContainerConfigError,
            job().container_waits(
                0,
                "CreateContainerConfigError",
                "container has runAsNonRoot and image will run as root",
            ),
            &["runAsUser", "will run as root"],
        ),
        (
            Situation::NodeUnreachable,
            {
                let case = job()
                    .trains(2)
                    .waits("NodeUnreachable", "1 of 2 workers ready");
                let conditions = json!([
                    {"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]);
                let mut case = with_pod(case, "/status", json!({"phase": "Running"}));
                case.pods.last_mut().unwrap()["status"]["conditions"] = conditions;
                case
            },
            &["node-1", "describe node"],
        ),
        (
            Situation::InitContainerFailed,
            job()
                .init_fails(0, "download", 3, "trying\nno such bucket\n")
                .waits("InitContainerFailed", "0 of 2 workers ready"),
            &[
                "download",
                "exit code 3",
                "no such bucket",
                "logs digits-worker-0-0 -c download",
            ],
        ),
        (
            Situation::CrashLoop,
            job()
                .crashes(0, 139, "Error", "Segmentation fault")
                .waits("CrashLoopBackOff", "0 of 2 workers ready"),
            &[
                "SIGSEGV",
                "Segmentation fault",
                "logs digits --previous",
                "5 times",
            ],
        ),
        (
            Situation::OutOfMemory,
            job()
                .crashes(0, 137, "OOMKilled", "killed by SIGKILL")
                .waits("CrashLoopBackOff", "0 of 2 workers ready"),
            &[
                "more memory than its limit",
                "microBatchSize",
                "limits.memory",
            ],
        ),
        (
            Situation::WorkerFailed,
            {
                let case = job()
                    .lobby(0, false)
                    .waits("WorkerFailed", "0 of 2 workers ready");
                with_pod(
                    case,
                    "/status",
                    json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
                )
            },
            &["Evicted", "node-0", "low on memory"],
        ),
        (
            Situation::Lobby,
            job()
                .lobby(0, true)
                .lobby(1, false)
                .waits("WaitingForWorkers", "1 of 2 workers ready"),
            &["1 of 2 workers are ready", "digits-worker-1-0: Preparing"],
        ),
        (
            Situation::SchedulingGated,
            job().waits("SchedulingGated", "0 of 2 workers ready; digits-worker-0-0 waits until these scheduling gates are removed: kueue.x-k8s.io/admission"),
            &["kueue.x-k8s.io/admission", "workloads.kueue"],
        ),
        (
            Situation::Forming,
            job()
                .lobby(0, true)
                .lobby(1, true)
                .waits("Forming", "generation 1: 2 workers, world size 2"),
            &["generation 1"],
        ),
    ]
}

fn afterwards() -> Vec<Row> {
    let slow = Progress {
        straggler: Some(Straggler {
            node_rank: 1,
            factor: 2.34,
        }),
        ..progress()
    };
    let hurt = |case: Case| case.last_failure("Killed", 137, "killed by SIGKILL");
    vec![
        (
            Situation::BelowMinReplicas,
            hurt(job().with("spec/workers/minReplicas", json!(2))).member(0).waits("BelowMinReplicas", "1 of 2 workers ready"),
            &["minReplicas (2)", "exit code 137: ended by SIGKILL", "rank 1 on node node-1"],
        ),
        (
            Situation::Recovering,
            hurt(job()).member(0).waits("Recovering", "1 of 2 workers ready for generation 4"),
            &["keep their state", "ended by SIGKILL"],
        ),
        (
            Situation::CheckpointFailing,
            job().trains(2).with("status/checkpoint", json!({
                "step": 400, "time": before(120), "error": "/checkpoints/ml/digits: No space left on device"})),
            &["No space left", "holds 400 steps and is 2m old", "Mend the volume"],
        ),
        (
            Situation::NoProgress,
            job().trains(2).with("status/progress/updatedAt", json!(before(1_200))),
            &["no step for 20m", "step 480"],
        ),
        (
            Situation::Straggler,
            job().trains(2).told(0, slow, ""),
            &["2.3 times", "node-1", "scale digits 1", "delete pod digits-worker-1-0"],
        ),
        (
            Situation::FewerWorkers,
            job().with("spec/workers/replicas", json!(3)).trains(2).unschedulable(2, "0/3 nodes are available"),
            &["2 of 3 workers", "0/3 nodes are available"],
        ),
        (Situation::Healthy, job().trains(2), &["Step 480 of 1000", "perplexity 12.50"]),
        (
            Situation::Diverged,
            failed(
                job().last_failure("ConfigInvalid", 64, "step 481: loss NaN, gradient norm NaN: training diverges on rank 1; lower"),
                "ConfigInvalid",
                "digits-worker-1-0: ConfigInvalid",
            ),
            &["learningRate", "onNonFinite", "submit it again"],
        ),
        (
            Situation::OutOfMemory,
            failed(
                job().last_failure("InternalError", 70, "rank 1: out of memory: lower trainer.microBatchSize"),
                "BackoffLimitExceeded",
                "7 incidents in a row",
            ),
            &["microBatchSize", "7 incidents in a row"],
        ),
        (
            Situation::DataInvalid,
            failed(job().last_failure("DataInvalid", 65, "/data/train is missing"), "DataInvalid", "digits-worker-1-0"),
            &["/data/train is missing", "trainer.data"],
        ),
        (
            Situation::ConfigInvalid,
            failed(job().last_failure("ConfigInvalid", 64, "model.width"), "ConfigInvalid", "digits-worker-1-0"),
            &["model.width"],
        ),
        (
            Situation::DeadlineExceeded,
            failed(job(), "StartDeadlineExceeded", "not all workers were ready within 600 s: no GPU"),
            &["no GPU", "startDeadlineSeconds"],
        ),
        (
            Situation::Failed,
            failed(hurt(job()), "BackoffLimitExceeded", "7 incidents in a row without a new step"),
            &["7 incidents", "--previous", "ended by SIGKILL", "continues from the newest checkpoint"],
        ),
        (
            Situation::Succeeded,
            job().trains(2).condition("Succeeded", "True", "Completed", "all workers completed"),
            &["all workers completed"],
        ),
    ]
}

#[test]
fn each_situation_has_one_diagnosis_with_evidence_and_advice() {
    for (expected, case, words) in before_training()
        .into_iter()
        .chain(while_containers_are_created())
        .chain(while_starting())
        .chain(afterwards())
    {
        let found = diagnose(&case.facts());
        assert_eq!(found.situation, expected, "{found:#?}");
        assert_eq!(found.is_wrong, expected.is_wrong());
        let has_advice = !found.advice.is_empty() || expected == Situation::Succeeded;
        assert!(has_advice, "{found:#?}");
        let all = format!(
            "{}\n{}\n{}",
            found.summary,
            found.evidence.join("\n"),
            found.advice.join("\n")
        );
        for word in words {
            assert!(all.contains(word), "{word:?} is not in {found:#?}");
        }
    }
}

#[test]
fn a_worker_that_is_lost_while_others_train_is_not_a_broken_job() {
    let case = job().with("spec/workers/minReplicas", json!(1)).trains(2);
    assert_eq!(diagnose(&case.facts()).situation, Situation::Healthy);
}

#[test]
fn an_agent_that_tells_a_newer_step_refutes_that_there_is_no_progress() {
    let newer = Progress {
        step: 481,
        ..progress()
    };
    let case = job()
        .trains(2)
        .with("status/progress/updatedAt", json!(before(1_200)))
        .told(0, newer, "");
    assert_eq!(diagnose(&case.facts()).situation, Situation::Healthy);
}

#[test]
fn a_container_that_the_kubelet_stopped_is_explained_by_the_kubelets_events() {
    let event = |reason: &str, message: &str| {
        json!({
            "metadata": {}, "type": "Warning", "reason": reason, "message": message,
            "involvedObject": {"kind": "Pod", "name": "digits-worker-0-0"},
        })
    };
    let hook = event("FailedPostStartHook", "PostStartHook failed");
    let crashing = |code: i32, events: &[&Value]| {
        let mut case = job().crashes(0, code, "Error", "left on request");
        case.events.extend(events.iter().copied().cloned());
        let found = diagnose(&case.facts());
        (found.evidence.join("\n"), found.advice.join("\n"))
    };
    let (evidence, advice) = crashing(143, &[&event("Pulled", "image is there"), &hook]);
    assert!(
        evidence.contains("event FailedPostStartHook of digits-worker-0-0: PostStartHook failed"),
        "{evidence}"
    );
    assert!(!evidence.contains("Pulled"), "{evidence}");
    assert!(advice.contains("lifecycle hook"), "{advice}");
    // A crash of its own is not explained by them, and without events nothing is claimed.
    for (code, events) in [(1, &[&hook][..]), (143, &[])] {
        let (evidence, advice) = crashing(code, events);
        assert!(
            !evidence.contains("Hook") && !advice.contains("hook"),
            "{evidence}"
        );
    }
}
