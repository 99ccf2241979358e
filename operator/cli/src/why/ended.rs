//! Diagnoses jobs that have ended.

use roundhouse_api::{ConditionType, LastFailure};
use roundhouse_contract::ExitCode;

use super::{Diagnosis, Situation};
use crate::facts::Facts;
use crate::view::exit;

/// Applies to a job that has ended.
pub(super) fn rule(facts: &Facts) -> Option<Diagnosis> {
    let status = facts.status();
    let name = facts.name();
    if let Some(condition) = status
        .condition(ConditionType::Succeeded)
        .filter(|it| it.status == "True")
    {
        let summary = format!("The job has succeeded: {}.", condition.message);
        return Some(Diagnosis::new(Situation::Succeeded, summary));
    }
    let failed = status
        .condition(ConditionType::Failed)
        .filter(|it| it.status == "True")?;
    let last = status.last_failure.as_ref();
    let diagnosis = of_failure(&name, &failed.reason, &failed.message, last);
    let diagnosis = last.map_or(diagnosis.clone(), |last| diagnosis.shown_by(evidence(last)));
    let again = format!(
        "A failed job does not run again: run `kubectl roundhouse stop {name}`, then submit it again. \
         With spec.checkpoint it continues from the newest checkpoint."
    );
    Some(diagnosis.advise(again))
}

/// The cause of a failure and advice on it, independent of whether the failure ended the job.
pub(super) fn cause(last: &LastFailure) -> Option<Diagnosis> {
    let words = last.message.to_lowercase();
    let code = last.exit_code.and_then(ExitCode::from_code);
    let worker = &last.worker;
    // Divergence has the exit code of a wrong configuration, because another run would diverge
    // again. Only the trainer's message distinguishes it.
    if words.contains("training diverges") {
        let summary = format!("Training diverged: {}.", last.message);
        return Some(
            Diagnosis::new(Situation::Diverged, summary)
                .advise("Lower trainer.optimizer.learningRate, or raise trainer.schedule.warmupSteps.")
                .advise("To skip a few bad steps instead, set trainer.onNonFinite to Skip; with precision fp16, see trainer.lossScaling."),
        );
    }
    if last.reason == "OOMKilled" || words.contains("out of memory") {
        let summary = format!("{worker} ran out of memory.");
        return Some(
            Diagnosis::new(Situation::OutOfMemory, summary)
                .advise("Lower trainer.microBatchSize, or set trainer.activationCheckpointing to Blocks for a model that has blocks.")
                .advise("If the host's memory ran out, raise resources.limits.memory of the container named trainer in workers.template."),
        );
    }
    match code? {
        ExitCode::DataInvalid => {
            let summary = format!("The data is missing or corrupt: {}.", last.message);
            Some(Diagnosis::new(Situation::DataInvalid, summary).advise(
                "Correct trainer.data, or the files in its volume. The message has the path.",
            ))
        }
        ExitCode::ConfigInvalid => {
            let summary = format!("The configuration is wrong: {}.", last.message);
            Some(
                Diagnosis::new(Situation::ConfigInvalid, summary)
                    .advise("Correct the field that the message names."),
            )
        }
        _ => None,
    }
}

/// The sentence about a failure that serves as evidence.
pub(super) fn evidence(last: &LastFailure) -> String {
    let node = last.node.as_ref().map(|node| format!(" on node {node}"));
    let rank = last.rank.map(|rank| format!(" rank {rank}"));
    let code = last
        .exit_code
        .map(|code| format!(" (exit code {code}: {})", exit::words(code, &last.reason)));
    let words = [rank, node].into_iter().flatten().collect::<String>();
    format!(
        "last failure: {}{words}: {}{}: {}",
        last.worker,
        last.reason,
        code.unwrap_or_default(),
        last.message
    )
}

fn of_failure(name: &str, reason: &str, message: &str, last: Option<&LastFailure>) -> Diagnosis {
    let deadline = |field: &str| {
        Diagnosis::new(
            Situation::DeadlineExceeded,
            format!("The job failed: {message}."),
        )
        .advise(format!("Correct the cause, or raise spec.{field}."))
    };
    match reason {
        "StartDeadlineExceeded" => return deadline("startDeadlineSeconds"),
        "DeadlineExceeded" => return deadline("activeDeadlineSeconds"),
        _ => {}
    }
    if let Some(cause) = last.and_then(cause) {
        return cause;
    }
    let failed = Diagnosis::new(
        Situation::Failed,
        format!("The job failed ({reason}): {message}."),
    );
    match reason {
        "BackoffLimitExceeded" | "MaxIncidentsExceeded" => failed
            .advise(format!("Correct what the last failure says. `kubectl roundhouse logs {name} --previous` shows the end of containers that were restarted, if their pods are still there."))
            .advise("If the nodes were at fault, raise spec.failurePolicy.backoffLimit or maxIncidents."),
        "MaxReplacementsExceeded" => failed
            .advise("See what takes the pods away: `kubectl get events`, and the nodes. Deletions by other programs are in the API server's audit log.")
            .advise("If the job is meant to wait out more, raise spec.failurePolicy.maxReplacements."),
        "FailurePolicyRule" => {
            failed.advise("A rule of spec.failurePolicy ended the job. Change the rule if it should not.")
        }
        _ => failed.advise("Correct what the message says."),
    }
}
