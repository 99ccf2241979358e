//! Summarizes a job in sentences.

use jiff::SignedDuration;
use roundhouse_api::{Checkpoint, CheckpointStatus, ConditionType, TrainingJob};
use roundhouse_contract::{OnScale, Progress};
use roundhouse_planner::status::{counted, percent};

use super::list::or_dash;
use super::span::left;
use super::{since, state};
use crate::facts::Facts;
use crate::render::loss_text;

/// The state of the job (first sentence), its progress, spares, checkpoints and incidents.
pub(crate) fn sentences(facts: &Facts) -> Vec<String> {
    let status = facts.status();
    let (reason, message) = facts.front();
    let mut all = vec![match reason.as_str() {
        "" => "The operator has not seen the job yet.".to_owned(),
        "Training" => format!("The job trains: {message}."),
        other if message.is_empty() => format!("{}.", state(other)),
        other => format!("{}: {message}", state(other)),
    }];
    if let Some(progress) = facts.progress() {
        all.push(format!("{}.", numbers(&progress)));
        if let Some(seconds) = seconds_left(&facts.job, &progress) {
            all.push(format!("About {} left at this speed.", span_of(seconds)));
        }
    }
    let spares = status.workers.as_ref().map_or(0, |it| it.spares);
    if spares > 0 {
        let verb = if spares == 1 { "waits" } else { "wait" };
        let spares = counted(spares, "spare");
        all.push(format!(
            "{spares} {verb} in the lobby to replace a lost member."
        ));
    }
    if let Some(checkpoint) = &status.checkpoint {
        if let Some(step) = checkpoint.step {
            let at = checkpoint.time.as_ref().map(|at| at.0);
            let age = since(at, facts.now);
            all.push(format!(
                "The newest checkpoint holds {step} steps and is {age} old."
            ));
        }
        if let Some(error) = &checkpoint.error {
            all.push(format!("The last checkpoint failed: {error}."));
        }
        if let Some(error) = &checkpoint.local_error {
            all.push(format!("Trouble with local copies: {error}."));
        }
    }
    if let Some((step, peer)) = newest_copy(facts, status.checkpoint.as_ref()) {
        let places = places_of_copies(facts, peer);
        all.push(format!("The newest local copy holds {step} steps{places}."));
    }
    if status.incidents.total > 0 {
        let number = counted(status.incidents.total, "incident");
        let last = status.last_failure.as_ref().map(|last| {
            let age = since(Some(last.time.0), facts.now);
            format!("; the last {age} ago: {}: {}", last.worker, last.reason)
        });
        all.push(format!("{number}{}.", last.unwrap_or_default()));
    }
    all
}

/// A copy of the state in another pod: the pod's name, and the committed steps.
type PeerCopy = (String, u64);

/// The step of rank 0's newest local copy, if it is newer than the checkpoint, and the copy in
/// another pod. The progress of a local run is newer than its status.
fn newest_copy(facts: &Facts, known: Option<&CheckpointStatus>) -> Option<(u64, Option<PeerCopy>)> {
    let progress = facts.progress().filter(|_| !facts.status().is_terminal());
    let reported = progress.and_then(|it| {
        let held = it.held_copy.map(|held| (held.pod, held.step));
        Some((it.local_step?, it.checkpoint_step, held))
    });
    let known = known.and_then(|it| {
        let held = it.peer_pod.clone().zip(it.peer_step);
        Some((it.local_step?, it.step, held))
    });
    let (local, saved, held) = reported.or(known)?;
    (saved < Some(local)).then(|| (local, held.filter(|(_, step)| saved < Some(*step))))
}

/// In which other pod the copy is, or in how many pods its parts are, if other pods hold copies.
fn places_of_copies(facts: &Facts, peer: Option<PeerCopy>) -> String {
    let checkpoint = facts.job.spec.checkpoint.as_ref();
    let has_peers = checkpoint.is_some_and(Checkpoint::has_peer_copies);
    match peer {
        Some((pod, step)) => return format!("; pod {pod} holds a copy of {step} steps"),
        None if has_peers && facts.pods_per_replica() == 1 => {
            return "; no other pod has a copy that is newer than the checkpoint".to_owned();
        }
        None => {}
    }
    let members = facts.workers().into_iter().filter(|it| it.place.is_some());
    let replicas = members.filter_map(|worker| worker.replica);
    let holders = replicas.filter_map(|it| it.holders.get(it.pod as usize).copied());
    let holders: Vec<Option<u32>> = holders.collect();
    let (held, all) = (holders.iter().flatten().count(), holders.len());
    if all == 0 {
        String::new()
    } else if held == all {
        ", each part of it in two pods".to_owned()
    } else {
        format!(
            "; {} of {all} pods have no second copy on another node",
            all - held
        )
    }
}

/// A number of seconds as a duration, such as `3m10s`.
pub(crate) fn span_of(seconds: u64) -> String {
    left(SignedDuration::from_secs(
        i64::try_from(seconds).unwrap_or(i64::MAX),
    ))
}

/// The numbers of training and of the last evaluation.
pub(crate) fn numbers(progress: &Progress) -> String {
    let Progress {
        step,
        total_steps,
        epoch,
        loss,
        skipped_steps,
        repeated_steps,
        last_repeat,
        samples_per_second,
        eval_accuracy,
        eval_loss,
        eval_perplexity,
        ..
    } = progress;
    let mut parts = vec![if *total_steps > 0 {
        format!(
            "Step {step} of {total_steps} ({})",
            percent(*step, *total_steps)
        )
    } else {
        format!("Step {step}")
    }];
    parts.push(format!("epoch {epoch}"));
    parts.extend(loss.map(|loss| format!("loss {}", loss_text(loss))));
    parts.push(speed_text(*samples_per_second));
    parts.extend(eval_accuracy.map(|it| format!("test accuracy {:.1} %", it * 100.0)));
    parts.extend(eval_perplexity.map(|it| format!("test perplexity {it:.2}")));
    parts.extend(eval_loss.map(|it| format!("test loss {it:.4}")));
    if *skipped_steps > 0 {
        parts.push(format!(
            "{} without an update",
            counted(skipped_steps, "step")
        ));
    }
    if *repeated_steps > 0 {
        let span = last_repeat.map(|it| format!(" (the last: {}-{})", it.first, it.last));
        parts.push(format!(
            "{} lost and repeated{}",
            counted(repeated_steps, "committed step"),
            span.unwrap_or_default()
        ));
    }
    parts.join(", ")
}

/// The speed if it is known. Some scripts report none, and a generation has none before its first
/// step.
pub(crate) fn known_speed(samples_per_second: f64) -> Option<f64> {
    (samples_per_second > 0.0).then_some(samples_per_second)
}

/// The speed with its unit, or a dash in its place.
pub(crate) fn speed_text(samples_per_second: f64) -> String {
    let speed = known_speed(samples_per_second).map(|it| format!("{it:.0}"));
    format!("{} samples/s", or_dash(speed))
}

/// Seconds until the last step, if each step uses `globalBatchSize` samples at the present speed.
/// `None` if the job does not train, or if its batch size is not fixed.
pub(crate) fn seconds_left(job: &TrainingJob, progress: &Progress) -> Option<u64> {
    let status = job.status.as_ref()?;
    let trainer = job.spec.trainer.as_ref()?;
    let trains = status.is_true(ConditionType::Running);
    let steps = progress.total_steps.checked_sub(progress.step)?;
    // A batch size that changes with the epoch or the workers cannot be predicted.
    let schedule = trainer.schedule.batch_growth.is_none();
    let is_fixed = schedule && job.spec.elastic.on_scale == OnScale::KeepGlobalBatch;
    // With one step per epoch, the batch may be larger than the data.
    let epochs = trainer.epochs.map(u64::from);
    let is_part = epochs.is_none_or(|epochs| progress.total_steps > epochs);
    let speed = progress.samples_per_second / f64::from(trainer.global_batch_size);
    let seconds = steps as f64 / speed;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be in range"
    )]
    (trains && is_fixed && is_part && seconds.is_finite() && (0.0..1e12).contains(&seconds))
        .then_some(seconds as u64)
}
