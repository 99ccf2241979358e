//! Situations of jobs that do not train yet.

use serde_json::{Value, json};

use super::super::Situation;
use super::{Row, with_pod};
use crate::testing::job;

pub(super) fn before_training() -> Vec<Row> {
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

pub(super) fn while_containers_are_created() -> Vec<Row> {
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

pub(super) fn while_starting() -> Vec<Row> {
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
