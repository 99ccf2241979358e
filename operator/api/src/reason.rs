//! Reasons of a job's conditions: a closed set. Each has its meaning and advice beside it, from
//! which `docgen` writes the failure handbook. The reason of the condition that matters most is
//! `status.state`, the STATE column of `kubectl get`.

use roundhouse_contract::ExitCode;

use crate::ConditionType::{self, Accepted, Failed, Running, Succeeded, Suspended};

/// Defines the enum and, for each variant, its conditions, meaning and advice. A variant that lacks
/// one of these does not compile.
macro_rules! reasons {
    ($( $(#[$doc:meta])* $name:ident: $conditions:expr, $meaning:literal, $advice:literal; )*) => {
        /// Why a condition of a job has its status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ConditionReason {
            $( $(#[$doc])* $name, )*
        }

        impl ConditionReason {
            /// All reasons, in the order of a job's lifecycle.
            pub const ALL: &[Self] = &[$( Self::$name, )*];

            /// The reason as the condition contains it, in `CamelCase` as
            /// the API conventions require.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$name => stringify!($name), )* }
            }

            /// The conditions that can have this reason, each with its status.
            #[must_use]
            pub const fn conditions(self) -> &'static [(ConditionType, bool)] {
                match self { $( Self::$name => &$conditions, )* }
            }

            /// What the reason means, in one or two sentences.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $( Self::$name => $meaning, )* }
            }

            /// What to do about it.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self { $( Self::$name => $advice, )* }
            }
        }
    };
}

reasons! {
    /// The operator accepted the job.
    Valid: [(Accepted, true)],
        "The operator accepted the job.",
        "Nothing.";
    /// The spec cannot run, or a part of it cannot be read.
    InvalidSpec: [(Accepted, false), (Running, false)],
        "The spec cannot be run, or a part of it cannot be read. The message names the field and says what to change. The operator creates no new pods. The existing pods continue, and the job is suspended and cleaned up as usual.",
        "Change the field. If it is immutable, delete the job and apply it again.";
    /// The administrator's policy does not allow what the job asks for.
    ForbiddenByPolicy: [(Accepted, false), (Running, false)],
        "The administrator's policy does not allow something that the job asks for, such as a directory of the node or root. The message names each field, its value, and the key of the policy. The operator creates no new pods; the existing pods continue.",
        "Leave the field out, or ask an administrator to allow it: the chart's value `policy` (guide *Many tenants*).";
    /// The namespace has as many jobs as the administrator's policy allows.
    TooManyJobs: [(Accepted, false), (Running, false)],
        "As many jobs of the namespace run as the administrator's policy allows (`policy.maxJobsPerNamespace`). The job starts by itself when one of them has ended or is suspended.",
        "Wait, suspend or delete another job of the namespace, or ask an administrator to raise the value.";
    /// A newer operator gave the job's workers their ranks.
    NewerProtocol: [(Accepted, false), (Running, false)],
        "The operator was rolled back. Its newer version gave the job's workers their ranks in a protocol that this version does not know. The message names both protocols. Workers that train continue. The operator creates and deletes nothing and forms no generation, so a lost worker is not replaced, and the status reports the end of the job and its deadlines only after the upgrade.",
        "Upgrade the operator to the version that ran before. Or suspend the job and resume it: it continues from its newest checkpoint with this version. A worker whose template names an image of the newer version needs the older one again.";
    /// An object of another owner has the name of the job's Service, NetworkPolicy or PodGroup.
    NameTaken: [(Running, false)],
        "The job needs a Service, a NetworkPolicy or a PodGroup whose name an object of another owner already has. The message names that object. The operator creates no pods meanwhile; workers that train continue.",
        "Delete or rename that object, or give the job another name. The operator retries by itself.";
    /// The gang scheduler of the job is not installed.
    GangSchedulerMissing: [(Running, false)],
        "The API server does not know the PodGroups of the gang scheduler that `scheduling.gang` names, or the operator may not read them. The message says what to install. The operator creates no pods meanwhile; workers that train continue.",
        "Install the gang scheduler and its CustomResourceDefinitions (guide *Gang scheduling and queues*), or delete the job and apply it with `scheduling.gang: None`. The operator retries by itself.";
    /// The API server refused one of the job's objects, or did not answer in time.
    Refused: [(Running, false)],
        "The API server refused to create a pod or another object of the job: a quota, an admission policy or a webhook. The message has its words. Or it did not answer in time, most often because an admission webhook is slow.",
        "Change the pod template, raise the quota, or ask the administrator who owns the policy or the webhook. The operator retries by itself.";
    /// Not all workers are ready for the first time.
    WaitingForWorkers: [(Running, false)],
        "Not all workers are prepared yet. The message counts those that are.",
        "Wait. If the count does not grow, look at the job's pods: `kubectl describe pods -l roundhouse.dev/job-name=NAME`.";
    /// Scheduling gates of another controller keep a worker from being placed.
    SchedulingGated: [(Running, false)],
        "A worker's pod has scheduling gates, so the scheduler ignores it. The message names the gates. A queue such as Kueue (`kueue.x-k8s.io/admission`) removes its gate when the job may run. Until the job first trains, its deadlines do not run.",
        "Wait, or ask the owner of the gate. For Kueue: `kubectl get workloads.kueue.x-k8s.io` shows what a workload waits for.";
    /// The scheduler has no node for a worker.
    Unschedulable: [(Running, false)],
        "The scheduler finds no node for a worker. The message has its words.",
        "Free resources, add a node, or ask for less in `workers.template`. If `status.avoidNodes` lists nodes, the job keeps new pods away from them for a while.";
    /// A node cannot get an image.
    ImagePullFailed: [(Running, false)],
        "A node cannot get an image of the pod. The message names the image.",
        "Correct the image's name, or give the pod an `imagePullSecrets` entry. The chart's value `trainer.image` sets the trainer's default image.";
    /// The kubelet cannot create or start a container.
    ContainerConfigError: [(Running, false)],
        "The kubelet cannot create or start the container. The message has its words.",
        "Often the image's user is root: set `securityContext.runAsUser` in the template. Or a ConfigMap or Secret that the template names is missing.";
    /// A placed pod does not start its containers.
    ContainerCreating: [(Running, false)],
        "A pod has had a node for more than 30 s and its containers do not start. Most often a volume is missing or cannot be mounted.",
        "Run `kubectl describe pod POD` and read the events. Check the ConfigMap, claim or directory of `trainer.data` and `checkpoint`.";
    /// An init container, or a sidecar before the trainer, fails.
    InitContainerFailed: [(Running, false)],
        "An init container of the template, or a sidecar that starts before the trainer, failed, and the trainer waits for it. The message has its name, exit code and last words. The kubelet starts it again; more restarts than `failurePolicy.backoffLimit` fail a job that cannot train without this worker.",
        "Read its log: `kubectl logs POD -c CONTAINER`. Correct the container in `workers.template`.";
    /// A worker ends repeatedly before it is ready.
    CrashLoopBackOff: [(Running, false)],
        "A worker ends repeatedly, and the kubelet waits before the next start. The message has the worker's last words.",
        "Read the log of the last run: `kubectl logs POD --previous`.";
    /// A worker's pod ended and does not restart.
    WorkerFailed: [(Running, false), (Failed, true)],
        "A worker's pod ended and does not restart, for example because its node refused or evicted it. The message has Kubernetes' reason. The operator creates a new pod: at once for the first attempt, later after a pause that grows from 10 s to 5 min.",
        "Usually nothing. If it repeats, look at the node that the message or `status.lastFailure.node` names.";
    /// Kubernetes has lost contact with a worker's node.
    NodeUnreachable: [(Running, false)],
        "Kubernetes has lost contact with the node of a worker. If other workers' nodes answer, the operator replaces the worker: after 60 s (`nodes.lostSeconds`), or after 300 s if only lost workers may have the state. If no node answers, it changes nothing.",
        "Look at the nodes: `kubectl get nodes`. Roundhouse never deletes the pod of a lost node by force. If you know that the node is off, `kubectl delete pod POD --force` lets the job continue at once.";
    /// A new generation was issued and its members form the process group.
    Forming: [(Running, false)],
        "The operator issued a new generation, and its members form the process group.",
        "Nothing. If it lasts for minutes, read the workers' logs: a network that does not let them connect is the usual cause.";
    /// All members of the newest generation train.
    Training: [(Running, true)],
        "All members of the newest generation train. The message names the generation, and any trouble with workers that are still wanted or with checkpoints.",
        "Nothing.";
    /// Members were lost, and the next generation waits for workers.
    Recovering: [(Running, false)],
        "A worker was lost, and the next generation waits for a worker. The workers that are left keep their state.",
        "Nothing. `INCIDENTS` counts the failures; `status.lastFailure` explains the newest one.";
    /// Fewer than `minReplicas` workers are left.
    BelowMinReplicas: [(Running, false)],
        "Fewer than `minReplicas` workers are left. They keep their state and wait.",
        "Wait for replacements, or lower `workers.minReplicas`.";
    /// The job is suspended because `spec.suspend` is true.
    Suspended: [(Running, false), (Suspended, true)],
        "`spec.suspend` is true. The job has no pods, or its pods are leaving. The message names the step that a resumed job continues from.",
        "To resume: `kubectl patch tj NAME --type merge -p '{\"spec\":{\"suspend\":false}}'`.";
    /// The job is resumed, and pods from before the suspension are terminating.
    Resuming: [(Running, false), (Suspended, true)],
        "The job is resumed, and pods from before the suspension are still leaving. They may be writing the checkpoint that the new pods start from.",
        "Nothing. It lasts at most the pods' grace period.";
    /// The job is not suspended any more.
    Resumed: [(Suspended, false)],
        "The job is not suspended any more. The message names the step that it continues from.",
        "Nothing.";
    /// The job is being deleted.
    Deleting: [(Running, true), (Running, false)],
        "The job is being deleted, and waits for finalizers of other controllers, which the message names, or until Kubernetes has deleted its pods. The operator neither creates nor deletes pods.",
        "Wait for the controller that owns the finalizer, or find out why it does not remove it. Without one, wait until the pods have left.";
    /// Members have completed, and others still run.
    Finishing: [(Running, true)],
        "Some workers have completed, and the others still run: the message has the numbers. A worker that has completed gives its GPUs back, and is not created again unless a running one fails.",
        "Nothing. With `successPolicy: RankZero` the job ends with the worker of rank 0.";
    /// Training has completed successfully.
    Completed: [(Running, false), (Succeeded, true)],
        "Training is complete, and its results are written.",
        "Nothing.";
    /// The trainer's configuration is wrong.
    ConfigInvalid: [(Running, false), (Failed, true)],
        "The trainer refused its configuration, or training diverged with it, or a script of your own ended without a call of `roundhouse.join()`, or its command does not exist (exit code 64). Running it again cannot help. The message names the key, the step and the loss, or what is missing.",
        "Correct `spec.trainer` or your script, delete the job, and apply it again.";
    /// The data is missing or corrupt.
    DataInvalid: [(Running, false), (Failed, true)],
        "The data is missing or corrupt, or does not fit the model (exit code 65). Running it again cannot help. The message has the path.",
        "Correct the data or `trainer.data`, delete the job, and apply it again. `trainer.data.reading.onCorrupt: Skip` replaces corrupt samples.";
    /// A rule of the job's failure policy failed it.
    FailurePolicyRule: [(Running, false), (Failed, true)],
        "A rule of `failurePolicy.rules` with the action `FailJob` matched a failure. The message has the number of the rule and the failure.",
        "Correct the cause, or change the rule in the job that you apply next.";
    /// Too many incidents in a row without progress.
    BackoffLimitExceeded: [(Running, false), (Failed, true)],
        "More than `failurePolicy.backoffLimit` incidents happened in a row without a new step, or a container restarted that often before it was ready and the job could not train without that worker. The message has the last failure.",
        "Look up the last failure in the failure handbook.";
    /// Too many incidents in total.
    MaxIncidentsExceeded: [(Running, false), (Failed, true)],
        "More than `failurePolicy.maxIncidents` incidents happened in total. The message has the last failure.",
        "Look up the last failure in the failure handbook. Raise or remove the limit if the job is meant to survive more.";
    /// Too many replacements in a row without progress.
    MaxReplacementsExceeded: [(Running, false), (Failed, true)],
        "More than `failurePolicy.maxReplacements` pods replaced others without a new step between them. Something removes the pods as soon as they are created: preemption, lost nodes, a full disk, or a program that deletes them. The message has the last failure.",
        "Correct that cause: look at the events of the namespace and the nodes, or at the API server's audit log for who deletes the pods. Raise `failurePolicy.maxReplacements` if the job is meant to wait out more.";
    /// Workers were not ready in time.
    StartDeadlineExceeded: [(Running, false), (Failed, true)],
        "Not enough workers were ready within `startDeadlineSeconds`. The message says what the job was waiting for.",
        "Correct that cause. Raise `startDeadlineSeconds` if the cluster needs longer to add nodes or pull images.";
    /// The active time of the job is over.
    DeadlineExceeded: [(Running, false), (Failed, true)],
        "The job was active for `activeDeadlineSeconds`. Time in suspension does not count.",
        "Give the job more time. With `spec.checkpoint`, a job that is deleted and applied again under its name continues from the newest checkpoint.";
}

impl ConditionReason {
    /// Parses a reason; `None` if it is not one of these.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|reason| reason.as_str() == text)
    }

    /// The reason of a job that failed with an exit code after which a restart cannot help.
    #[must_use]
    pub const fn of_permanent(code: ExitCode) -> Option<Self> {
        match code {
            ExitCode::ConfigInvalid => Some(Self::ConfigInvalid),
            ExitCode::DataInvalid => Some(Self::DataInvalid),
            ExitCode::Done
            | ExitCode::Internal
            | ExitCode::VolumeFailed
            | ExitCode::PeerLost
            | ExitCode::Stalled
            | ExitCode::HardwareFault
            | ExitCode::Left => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_survive_a_round_trip() {
        for reason in ConditionReason::ALL {
            assert_eq!(ConditionReason::parse(reason.as_str()), Some(*reason));
        }
        assert_eq!(ConditionReason::parse("Waiting"), None);
    }

    #[test]
    fn reasons_have_conditions_and_sentences() {
        for reason in ConditionReason::ALL {
            assert!(!reason.conditions().is_empty(), "{reason:?}");
            for words in [reason.meaning(), reason.advice()] {
                assert!(
                    words.len() > 4 && words.ends_with(['.', '`']),
                    "{reason:?}: {words}"
                );
            }
        }
    }

    #[test]
    fn permanent_exit_codes_have_a_reason() {
        for code in ExitCode::ALL {
            let reason = ConditionReason::of_permanent(code);
            assert_eq!(reason.is_some(), code.is_permanent(), "{code:?}");
        }
    }
}
