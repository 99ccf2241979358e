//! Explains what happens next to a job, and when.

use jiff::{SignedDuration, Timestamp};
use roundhouse_api::{CleanPodPolicy, ConditionType, TrainingJobStatus};
use roundhouse_planner::status::counted;

use super::until;
use crate::facts::Facts;

/// Sentences about what happens next. Those with the soonest times come first.
pub(crate) fn of(facts: &Facts) -> Vec<String> {
    let Some(status) = &facts.job.status else {
        return vec!["The operator reconciles the job as soon as the operator runs.".to_owned()];
    };
    if status.is_terminal() {
        let expiry = expiry(facts, status);
        return std::iter::once(after_the_end(facts))
            .chain(expiry)
            .collect();
    }
    let (reason, _) = facts.front();
    let name = facts.name();
    match reason.as_str() {
        "InvalidSpec" => return vec!["Nothing, until you change the spec.".to_owned()],
        "ForbiddenByPolicy" => {
            return vec![
                "Nothing, until you change the spec, or an administrator the policy.".to_owned(),
            ];
        }
        "TooManyJobs" => {
            return vec![
                "The job begins when another job of its namespace ends or is suspended.".to_owned(),
            ];
        }
        "NewerProtocol" => {
            return vec![
                "Nothing, until a newer operator runs, or the job is suspended.".to_owned(),
            ];
        }
        _ => {}
    }
    if facts.job.spec.suspend {
        return vec![match reason.as_str() {
            "Suspended" => format!("Nothing, until you run `kubectl roundhouse resume {name}`."),
            _ => "The operator asks the workers to leave.".to_owned(),
        }];
    }
    let mut all = Vec::new();
    if status.is_true(ConditionType::Running) {
        all.extend(while_training(facts, status));
    } else {
        all.extend(until_training(facts, status));
    }
    all.extend(active_deadline(facts, status));
    let now = facts.now;
    for avoided in status.avoid_nodes.iter().filter(|it| it.until.0 > now) {
        let left = until(avoided.until.0, facts.now);
        all.push(format!(
            "In {left} new pods of the job may use node {} again ({}).",
            avoided.node, avoided.reason
        ));
    }
    all
}

fn after_the_end(facts: &Facts) -> String {
    let kept = match facts.job.spec.clean_pod_policy {
        CleanPodPolicy::Running => "Pods that have ended stay, with their logs",
        CleanPodPolicy::All => "Its pods are deleted",
        CleanPodPolicy::None => "Its pods stay, with their logs",
    };
    format!("Nothing: the job has ended. {kept} (cleanPodPolicy).")
}

fn expiry(facts: &Facts, status: &TrainingJobStatus) -> Option<String> {
    let ttl = facts.job.spec.ttl_seconds_after_finished?;
    let ended = status.completion_time.as_ref()?.0;
    let due = ended.checked_add(span(ttl.into())).ok()?;
    let left = until(due, facts.now);
    Some(format!(
        "The TrainingJob is deleted in {left} (at {}), with its pods and their logs (ttlSecondsAfterFinished).",
        whole(due)
    ))
}

fn while_training(facts: &Facts, status: &TrainingJobStatus) -> Vec<String> {
    let mut all = Vec::new();
    let (wanted, ready) = status
        .workers
        .as_ref()
        .map_or((0, 0), |it| (it.wanted, it.ready));
    let nodes = status.membership.as_ref().map_or(0, |it| it.nodes);
    if nodes < wanted {
        let window = facts.job.spec.elastic.join_window_seconds;
        let missing = counted(wanted - nodes, "worker");
        all.push(format!(
            "{missing} more can join: a ready worker waits at most {window}s for others (joinWindowSeconds). \
             {ready} of {wanted} are ready."
        ));
    }
    all.extend(checkpoint(facts, status));
    all
}

fn checkpoint(facts: &Facts, status: &TrainingJobStatus) -> Option<String> {
    let wanted = facts.job.spec.checkpoint.as_ref()?;
    let known = status.checkpoint.as_ref();
    let step = facts.progress().map(|it| it.step);
    let next_step = wanted.every_steps.zip(step);
    let next_step =
        next_step.map(|(every, step)| format!("at step {}", (step / every + 1) * every));
    let next_time = wanted.seconds().map(|every| {
        let at = known.and_then(|it| it.time.as_ref()).map(|at| at.0);
        let due = at.and_then(|at| at.checked_add(span(every)).ok());
        due.map_or_else(
            || format!("within {every}s"),
            |due| format!("in {}", until(due, facts.now)),
        )
    });
    let both: Vec<String> = next_step.into_iter().chain(next_time).collect();
    Some(if both.is_empty() {
        "A checkpoint is written when training ends, and when all workers are asked to leave."
            .to_owned()
    } else {
        format!("The next checkpoint is due {}.", both.join(", or "))
    })
}

fn until_training(facts: &Facts, status: &TrainingJobStatus) -> Vec<String> {
    let spec = &facts.job.spec;
    let mut all = Vec::new();
    let resumed_after = status.resumed_after_generation.unwrap_or(0);
    let is_starting = facts.generation() == resumed_after;
    let start = status.start_time.as_ref().map(|start| start.0);
    if is_starting {
        let deadline = start.zip(spec.start_deadline_seconds);
        let due = deadline.map(|(start, seconds)| start.checked_add(span(seconds.into())));
        if let Some(Ok(due)) = due {
            let left = until(due, facts.now);
            all.push(format!(
                "The job fails in {left} (at {}) unless it trains by then (startDeadlineSeconds).",
                whole(due)
            ));
        } else {
            let min = spec.workers.min_replicas.unwrap_or(spec.workers.replicas);
            all.push(format!(
                "Training begins when {} can take part.",
                counted(min, "worker")
            ));
        }
    } else {
        let min = spec.workers.min_replicas.unwrap_or(spec.workers.replicas);
        all.push(format!(
            "Training continues as soon as {} can take part.",
            counted(min, "worker")
        ));
        let limit = spec.failure_policy.backoff_limit;
        let since = status.incidents.since_progress;
        let more = (limit + 1).saturating_sub(since);
        all.push(format!(
            "The job fails after {} without a new step between them (backoffLimit).",
            counted(more, "more incident")
        ));
    }
    if facts.workers().iter().any(|worker| {
        worker
            .waiting
            .as_ref()
            .is_some_and(|(reason, _)| reason == "CrashLoopBackOff")
    }) {
        all.push("The kubelet restarts a crashed container after a back-off of 10s, which doubles up to 5m.".to_owned());
    }
    all
}

fn active_deadline(facts: &Facts, status: &TrainingJobStatus) -> Option<String> {
    let deadline = u64::from(facts.job.spec.active_deadline_seconds?);
    let start = status.start_time.as_ref()?.0;
    let left = deadline.saturating_sub(status.active_seconds);
    let due = start.checked_add(span(left)).ok()?;
    let left = until(due, facts.now);
    Some(format!(
        "The job fails in {left} (at {}) if it has not ended by then (activeDeadlineSeconds).",
        whole(due)
    ))
}

fn span(seconds: u64) -> SignedDuration {
    SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX))
}

/// A time in whole seconds, UTC.
fn whole(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
