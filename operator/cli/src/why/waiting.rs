//! Diagnoses jobs whose workers are healthy but do not train yet.

use roundhouse_planner::status::counted;

use super::{Diagnosis, Situation, ended};
use crate::facts::Facts;
use crate::view::ranks;

/// Applies to every job that no other rule applies to.
pub(super) fn rule(facts: &Facts) -> Diagnosis {
    let (reason, _) = facts.front();
    let name = facts.name();
    let status = facts.status();
    let last = status.last_failure.as_ref();
    let spec = &facts.job.spec.workers;
    let diagnosis = match reason.as_str() {
        "Resuming" => Diagnosis::new(
            Situation::Resuming,
            "The job was resumed, but workers from before the suspension still leave.",
        )
        .advise("Nothing: they leave within their grace period."),
        "BelowMinReplicas" => {
            let min = spec.min_replicas.unwrap_or(spec.replicas);
            let summary = format!("Fewer workers are left than workers.minReplicas ({min}). They keep their state and wait.");
            Diagnosis::new(Situation::BelowMinReplicas, summary)
                .advise("Nothing, if the lost workers can be replaced.")
                .advise("To continue with those that are left, lower workers.minReplicas in the job.")
        }
        "Recovering" if spec.replicas == 1 => Diagnosis::new(
            Situation::Recovering,
            "The only worker, or a pod of it, was lost. Training continues when it is back.",
        )
        .advise("Nothing: it is restarted or replaced."),
        "Recovering" => Diagnosis::new(Situation::Recovering, "A worker was lost. The others keep their state and wait for it.")
            .advise("Nothing: it is restarted or replaced.")
            .advise("To let the other workers continue without it the next time, set workers.minReplicas below workers.replicas."),
        "SchedulingGated" => Diagnosis::new(
            Situation::SchedulingGated,
            "A queue holds the job: its pods have scheduling gates, which the queue removes when the job may run.",
        )
        .advise("Ask the owner of the queue. With Kueue, `kubectl get workloads.kueue.x-k8s.io` shows what a workload waits for."),
        "Forming" => Diagnosis::new(Situation::Forming, "The workers form a generation.")
            .advise("Nothing: this takes a moment."),
        _ => lobby(facts),
    };
    let recovers = matches!(
        diagnosis.situation,
        Situation::BelowMinReplicas | Situation::Recovering
    );
    let diagnosis = match last.filter(|_| recovers) {
        Some(last) => diagnosis.shown_by(ended::evidence(last)),
        None => diagnosis,
    };
    diagnosis.advise(format!("Watch it: `kubectl roundhouse watch {name}`."))
}

fn lobby(facts: &Facts) -> Diagnosis {
    let ranks = ranks::of(facts);
    let is_ready = |state: &str| state == "Lobby" || state == "Training";
    let wanted = facts.job.spec.workers.replicas;
    let of_pods = || {
        let workers = facts.workers();
        let ready = workers.iter().filter(|it| it.is_ready && !it.is_leaving);
        u32::try_from(ready.count()).unwrap_or(u32::MAX)
    };
    // A replica of several pods is ready when all of them are.
    let counted_by_operator = facts
        .status()
        .workers
        .filter(|_| facts.has_large_replicas());
    let ready = counted_by_operator.map_or_else(of_pods, |workers| workers.ready);
    let summary = format!(
        "The job has not begun: {ready} of {} are ready.",
        counted(wanted, "worker")
    );
    let mut diagnosis = Diagnosis::new(Situation::Lobby, summary);
    for rank in ranks.iter().filter(|rank| !is_ready(&rank.state)) {
        diagnosis = diagnosis.shown_by(format!("{}: {}", rank.pod, rank.state));
    }
    diagnosis.advise("Nothing yet: workers load libraries and data before they are ready.")
}
