//! Diagnoses workers' pods that cannot be created, placed, started or kept.

use k8s_openapi::api::core::v1::Event;
use roundhouse_api::Workers;

use super::{Diagnosis, Situation, ended, init};
use crate::facts::Facts;
use crate::facts::worker::Worker;
use crate::view::exit;

/// Applies when something is wrong with a pod of the job.
pub(super) fn rule(facts: &Facts) -> Option<Diagnosis> {
    let (reason, message) = facts.front();
    if let Some(refused) = refused(facts, &reason, &message) {
        return Some(refused);
    }
    let workers = facts.workers();
    let staying = || workers.iter().filter(|worker| !worker.is_leaving);
    staying()
        .find_map(unreachable)
        .or_else(|| staying().find_map(init::rule))
        .or_else(|| staying().find_map(|worker| crash(facts, worker)))
        .or_else(|| staying().find_map(waiting))
        .or_else(|| unschedulable(facts, &workers))
        .or_else(|| staying().find_map(failed))
        .or_else(|| creating(facts, &workers, &reason, &message))
}

fn refused(facts: &Facts, reason: &str, message: &str) -> Option<Diagnosis> {
    let name = facts.name();
    match reason {
        "NameTaken" => Some(
            Diagnosis::new(Situation::NameTaken, format!("Another object has a name that the job needs: {message}."))
                .advise("Delete or rename that object, or give the job another name."),
        ),
        "GangSchedulerMissing" => Some(
            Diagnosis::new(Situation::GangSchedulerMissing, format!("The job's gang scheduler is not installed: {message}."))
                .advise("Ask an administrator to install it; the operator then continues by itself. Or delete the job and apply it with `scheduling.gang: None`."),
        ),
        "Refused" if message.contains("exceeded quota") => Some(
            Diagnosis::new(Situation::QuotaExceeded, "The namespace's quota does not allow the job's pods.")
                .advise("See the usage: `kubectl describe resourcequota`.")
                .advise(format!("Request less, for example `kubectl roundhouse scale {name} N` or smaller resources in workers.template, or ask an administrator for a larger quota. The operator retries by itself.")),
        ),
        "Refused" if message.contains("does not answer") => Some(
            Diagnosis::new(Situation::NoAnswer, format!("The job's objects cannot be created: {message}."))
                .advise("Look for an admission webhook that is slow or gone: `kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations`. The operator retries by itself."),
        ),
        "Refused" => Some(
            Diagnosis::new(Situation::Refused, format!("The API server refuses an object of the job: {message}."))
                .advise("Change workers.template so that the policy in the message allows it, or change the policy. The operator retries by itself."),
        ),
        _ => None,
    }
}

fn unreachable(worker: &Worker) -> Option<Diagnosis> {
    let node = worker.node.as_ref().filter(|_| worker.is_unreachable)?;
    Some(
        Diagnosis::new(Situation::NodeUnreachable, format!("Kubernetes has lost contact with node {node}."))
            .shown_by(format!("pod {} on it is not Ready although its containers are", worker.pod))
            .advise(format!("Check the node: `kubectl describe node {node}`. The operator replaces the worker on another node if there is room: after 60 s (nodes.lostSeconds), or after 300 s if only lost workers may have the state. If the node is off for certain, `kubectl delete pod {} --force` lets the job continue at once.", worker.pod)),
    )
}

fn unschedulable(facts: &Facts, workers: &[Worker]) -> Option<Diagnosis> {
    let all: Vec<&Worker> = workers
        .iter()
        .filter(|it| it.unschedulable.is_some() && !it.is_leaving)
        .collect();
    let first = all.first()?;
    let words = first.unschedulable.clone().unwrap_or_default();
    let (wanted, what) = if facts.has_large_replicas() {
        (facts.num_pods(), "pods")
    } else {
        (facts.job.spec.workers.replicas, "workers")
    };
    let summary = format!(
        "The scheduler finds no node for {} of {wanted} {what}.",
        all.len()
    );
    let avoided = facts.status().avoid_nodes;
    let lacks_claim = words.contains("persistentvolumeclaim") && words.contains("not found");
    let mut diagnosis = Diagnosis::new(Situation::Unschedulable, summary)
        .shown_by(format!("{}: {words}", first.pod))
        .advise(if lacks_claim {
            "Create the PersistentVolumeClaim, or correct its name in the job. The scheduler then places the workers."
        } else {
            "Free or add what the scheduler's message names, or change resources, nodeSelector, affinity or tolerations in workers.template."
        });
    let Workers {
        replicas,
        min_replicas,
        ..
    } = facts.job.spec.workers;
    // Fewer workers help only if some have a node.
    let some_fit = all.len() < wanted as usize;
    if some_fit && min_replicas.is_none_or(|min| min >= replicas) {
        diagnosis = diagnosis.advise("To train with fewer workers meanwhile, set workers.minReplicas below workers.replicas.");
    }
    for node in avoided.iter().filter(|node| node.until.0 > facts.now) {
        diagnosis = diagnosis.shown_by(format!(
            "node {} is avoided after {}",
            node.node, node.reason
        ));
    }
    Some(diagnosis)
}

fn waiting(worker: &Worker) -> Option<Diagnosis> {
    let (reason, message) = worker.waiting.as_ref()?;
    let pod = &worker.pod;
    let evidence = format!("{pod}: {reason}: {message}");
    let diagnosis = match reason.as_str() {
        "ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull" | "InvalidImageName" => {
            Diagnosis::new(Situation::ImagePullFailed, format!("The node of {pod} cannot get the image."))
                .advise("Correct the image's name in workers.template, or trainer.image in the values of the chart.")
                .advise("For a private registry, set imagePullSecrets in workers.template.")
        }
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            Diagnosis::new(Situation::ContainerConfigError, format!("The kubelet cannot start the container of {pod}."))
                .advise("An image whose user is root needs securityContext.runAsUser in workers.template. A ConfigMap or Secret that the template names must exist.")
        }
        _ => return None,
    };
    Some(diagnosis.shown_by(evidence))
}

/// Applies to a container that keeps ending before its worker is ready.
fn crash(facts: &Facts, worker: &Worker) -> Option<Diagnosis> {
    let (reason, _) = worker.waiting.as_ref()?;
    let end = worker
        .end
        .as_ref()
        .filter(|_| reason == "CrashLoopBackOff")?;
    let (pod, name) = (&worker.pod, facts.name());
    let words = exit::words(end.code, &end.reason);
    let own = end
        .message
        .as_ref()
        .map_or("", |message| message.message.as_str());
    let evidence = format!("{pod} ended with exit code {}: {words}; {own}", end.code);
    let last = facts
        .status()
        .last_failure
        .filter(|last| last.worker == *pod);
    let memory = (end.reason == "OOMKilled").then(|| roundhouse_api::LastFailure {
        time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(facts.now),
        worker: pod.clone(),
        rank: None,
        node: worker.node.clone(),
        reason: end.reason.clone(),
        exit_code: Some(end.code),
        step: None,
        message: own.to_owned(),
    });
    let known = memory.or(last).as_ref().and_then(ended::cause);
    let diagnosis = known.unwrap_or_else(|| {
        let summary = format!(
            "{pod} keeps ending before it can train: {words} (exit code {}).",
            end.code
        );
        Diagnosis::new(Situation::CrashLoop, summary).advise(format!(
            "See its last lines: `kubectl roundhouse logs {name} --previous --tail 50`."
        ))
    });
    Some(
        diagnosis
            .shown_by(evidence)
            .shown_by(format!("{pod} was restarted {} times", worker.restarts)),
    )
}

fn failed(worker: &Worker) -> Option<Diagnosis> {
    let (reason, message) = worker.failed.as_ref()?;
    let node = worker.node.as_ref().map(|node| format!(" on node {node}"));
    let summary = format!(
        "Kubernetes ended {}{}: {reason}.",
        worker.pod,
        node.unwrap_or_default()
    );
    Some(
        Diagnosis::new(Situation::WorkerFailed, summary)
            .shown_by(format!("{}: {reason}: {message}", worker.pod))
            .advise("Nothing, if the node was drained or lacked resources: the operator replaces the worker after a while."),
    )
}

/// Applies to a pod whose containers do not start. The operator reports it after 30 s, the
/// kubelet's events at once.
fn creating(facts: &Facts, workers: &[Worker], reason: &str, message: &str) -> Option<Diagnosis> {
    let warnings: Vec<&Event> = facts
        .events
        .iter()
        .filter(|event| {
            event.type_.as_deref() == Some("Warning")
                && event.involved_object.kind.as_deref() == Some("Pod")
        })
        .collect();
    let is_reported =
        reason == "ContainerCreating" || message.contains("does not start its containers");
    if !is_reported && !warnings.iter().any(|event| lacks_volume(event, workers)) {
        return None;
    }
    let mut diagnosis = Diagnosis::new(
        Situation::ContainerCreating,
        "A worker has a node, but its containers do not start: most often a volume is missing.",
    );
    for event in warnings {
        let (reason, message) = (event.reason.as_deref(), event.message.as_deref());
        let (reason, message) = (reason.unwrap_or_default(), message.unwrap_or_default());
        diagnosis = diagnosis.shown_by(format!("event {reason}: {message}"));
    }
    Some(diagnosis.advise(
        "Create the ConfigMap, claim or directory that trainer.data and spec.checkpoint name. The pods then start by themselves.",
    ))
}

/// Whether the event says that the kubelet cannot mount a volume of a pod that has not started yet.
fn lacks_volume(event: &Event, workers: &[Worker]) -> bool {
    let is_of_volumes = matches!(
        event.reason.as_deref(),
        Some("FailedMount" | "FailedAttachVolume")
    );
    let pod = event.involved_object.name.as_deref();
    let has_not_run =
        |worker: &&Worker| worker.node.is_some() && !worker.is_running && worker.end.is_none();
    let mut waiting = workers.iter().filter(has_not_run);
    is_of_volumes && waiting.any(|worker| Some(worker.pod.as_str()) == pod)
}
