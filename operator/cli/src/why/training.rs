//! Diagnoses jobs that train.

use jiff::SignedDuration;
use roundhouse_api::ConditionType;

use super::{Diagnosis, Situation, pods};
use crate::facts::Facts;
use crate::view::{ranks, since};

/// Age above which progress counts as too old. The operator writes progress every 10 s, and agents
/// report it at once.
const OLD: SignedDuration = SignedDuration::from_mins(3);

/// Applies to a job that trains.
pub(super) fn rule(facts: &Facts) -> Option<Diagnosis> {
    let status = facts.status();
    if !status.is_true(ConditionType::Running) {
        return None;
    }
    let name = facts.name();
    let found = checkpoint(facts)
        .or_else(|| local_copies(facts))
        .or_else(|| no_progress(facts))
        .or_else(|| straggler(facts))
        .or_else(|| fewer_workers(facts));
    let numbers = facts.progress().map(|it| crate::view::numbers(&it));
    let healthy = || {
        Diagnosis::new(Situation::Healthy, "The job trains, and nothing is wrong.")
            .advise(format!("Follow it with `kubectl roundhouse watch {name}`."))
    };
    Some(
        found
            .unwrap_or_else(healthy)
            .shown_by(numbers.unwrap_or_default()),
    )
}

fn checkpoint(facts: &Facts) -> Option<Diagnosis> {
    let status = facts.status();
    let checkpoint = status.checkpoint?;
    let reported = facts.progress().and_then(|it| it.checkpoint_error);
    let error = reported.or(checkpoint.error)?;
    let newest = checkpoint.step.map_or_else(
        || "no checkpoint is known".to_owned(),
        |step| {
            let age = since(checkpoint.time.map(|at| at.0), facts.now);
            format!("the newest checkpoint holds {step} steps and is {age} old")
        },
    );
    Some(
        Diagnosis::new(
            Situation::CheckpointFailing,
            "The job trains, but its checkpoints cannot be written: its progress is lost if all workers are lost.",
        )
        .shown_by(error)
        .shown_by(newest)
        .advise("Repair the volume of spec.checkpoint: it is full, read-only, slow or gone. It needs room for one more checkpoint than `keep`.")
        .advise("Nothing must be restarted: the job tries again by itself."),
    )
}

fn local_copies(facts: &Facts) -> Option<Diagnosis> {
    let reported = facts.progress().and_then(|it| it.local_error);
    let error = reported.or(facts.status().checkpoint?.local_error)?;
    Some(
        Diagnosis::new(
            Situation::CheckpointFailing,
            "The job trains, but its local copies cannot be written, or not stored in another pod: if workers are lost, it may continue from \
             an older copy or from the newest checkpoint.",
        )
        .shown_by(error)
        .advise("If checkpoint.local.sizeLimit is too small, suspend the job, raise it, and resume the job.")
        .advise("If the disk of a node is full, make room on it. If another pod does not answer, read its log. The job tries again by itself."),
    )
}

fn no_progress(facts: &Facts) -> Option<Diagnosis> {
    let status = facts.status();
    let read_at = status.progress.as_ref()?.updated_at.0;
    let stored = status.progress.as_ref()?.progress.step;
    let newest = facts.progress()?;
    let age = facts.now.duration_since(read_at);
    if age < OLD || newest.step > stored || newest.generation < facts.generation() {
        return None;
    }
    let name = facts.name();
    let timeout = facts.job.spec.stall_timeout_seconds;
    let advice = match timeout {
        Some(0) => "spec.stallTimeoutSeconds is 0, so no hang is detected: raise it, or remove it."
            .to_owned(),
        _ => {
            "The agent logs what each thread of a hanging process does, and then ends the process."
                .to_owned()
        }
    };
    let summary = format!(
        "The job has made no step for {}.",
        since(Some(read_at), facts.now)
    );
    Some(
        Diagnosis::new(Situation::NoProgress, summary)
            .shown_by(format!("step {stored} was reported {} ago", since(Some(read_at), facts.now)))
            .advise(advice)
            .advise(format!("Read the logs of the ranks: `kubectl roundhouse logs {name} --tail 20`. A long evaluation or save makes no step, either.")),
    )
}

fn straggler(facts: &Facts) -> Option<Diagnosis> {
    let straggler = facts.progress()?.straggler?;
    let ranks = ranks::of(facts);
    let slow = ranks.iter().find(|rank| rank.slower.is_some())?;
    let node = slow
        .node
        .clone()
        .unwrap_or_else(|| "an unknown node".to_owned());
    let summary = format!(
        "The job trains, but all ranks wait for {} on {node}: it takes {:.1} times as long as the others.",
        slow.pod, straggler.factor
    );
    let (name, pod) = (facts.name(), &slow.pod);
    let wanted = facts.job.spec.workers.replicas;
    let others = match (wanted, facts.pods_per_replica()) {
        (1, 1) => "training continues from its newest copy or checkpoint",
        (1, _) => "the other pods of its replica restart their processes",
        _ => "the others keep training",
    };
    let diagnosis = Diagnosis::new(Situation::Straggler, summary)
        .advise(format!("Check node {node} for another load, a throttled GPU or a slow disk: `kubectl describe node {node}`."))
        .advise(format!("To move the worker, run `kubectl cordon {node}` and `kubectl delete pod {pod}`: the operator replaces it, and {others}."));
    if wanted == 1 {
        return Some(diagnosis);
    }
    let one_less = wanted.saturating_sub(1);
    Some(diagnosis.advise(format!("To continue without it, run `kubectl roundhouse scale {name} {one_less}`: scaling down removes the straggler first.")))
}

fn fewer_workers(facts: &Facts) -> Option<Diagnosis> {
    let status = facts.status();
    let nodes = status.membership?.nodes;
    let wanted = status.workers?.wanted;
    if nodes >= wanted {
        return None;
    }
    let cause = pods::rule(facts);
    let because = cause.as_ref().map(|it| it.summary.clone());
    let because = because.unwrap_or_else(|| "The others are not ready yet.".to_owned());
    let summary = format!("The job trains with {nodes} of {wanted} workers. {because}");
    let mut diagnosis = Diagnosis::new(Situation::FewerWorkers, summary);
    if let Some(cause) = cause {
        diagnosis.evidence = cause.evidence;
        diagnosis.advice = cause.advice;
    }
    Some(diagnosis)
}
