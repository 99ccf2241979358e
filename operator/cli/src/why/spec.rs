//! Diagnoses jobs that the operator does not run: managed by another controller, unseen, invalid or
//! suspended.

use super::{Diagnosis, Situation};
use crate::facts::Facts;
use crate::view::since;
use kube::ResourceExt;
use roundhouse_api::finalizers_of_others;
use roundhouse_contract::labels;

/// Applies to a job that the operator does not run because of its spec, or has not seen yet.
pub(super) fn rule(facts: &Facts) -> Option<Diagnosis> {
    let (spec, name) = (&facts.job.spec, facts.name());
    let (reason, message) = facts.front();
    if spec.managed_by != labels::DEFAULT_MANAGER {
        let summary = format!("Another controller manages the job: {}.", spec.managed_by);
        let diagnosis = Diagnosis::new(Situation::NotManaged, summary);
        return Some(diagnosis.advise(format!(
            "To let Roundhouse run it, leave out spec.managedBy. The field is immutable: run `kubectl roundhouse stop {name}` \
             and submit the job again."
        )));
    }
    if facts.job.status.is_none() {
        let created = facts.job.creation_timestamp().map(|at| at.0);
        return Some(
            Diagnosis::new(Situation::Unseen, "The operator has not seen the job yet.")
                .shown_by(format!("The job was created {} ago and has no status.", since(created, facts.now)))
                .advise("Check that the operator runs: `kubectl get pods -A -l app.kubernetes.io/component=operator`.")
                .advise("Check in the values of its chart that the operator watches this namespace."),
        );
    }
    if reason == "Deleting" {
        let summary = "The job is being deleted.";
        let finalizers = facts.job.finalizers();
        let is_held = finalizers_of_others(finalizers).next().is_some();
        let diagnosis = Diagnosis::new(Situation::Deleting, summary).shown_by(message);
        return Some(if is_held {
            diagnosis.advise("Wait for the controller that owns the finalizer, or find out why it does not remove it.")
        } else {
            diagnosis.advise("Wait until its pods have left.")
        });
    }
    if reason == "InvalidSpec" {
        let summary = format!("The spec is invalid: {message}.");
        return Some(Diagnosis::new(Situation::InvalidSpec, summary).advise(
            "Correct that field in your file, then run `kubectl roundhouse submit -f FILE`.",
        ));
    }
    if reason == "ForbiddenByPolicy" {
        let summary = "The administrator's policy does not allow what the job asks for.";
        return Some(
            Diagnosis::new(Situation::ForbiddenByPolicy, summary)
                .shown_by(message)
                .advise("Remove these fields from your file, then run `kubectl roundhouse submit -f FILE`.")
                .advise("Or ask an administrator to allow them: each policy.… above is a value of the operator's chart."),
        );
    }
    if reason == "TooManyJobs" {
        let summary = "The namespace has as many jobs as the administrator's policy allows.";
        return Some(
            Diagnosis::new(Situation::TooManyJobs, summary)
                .shown_by(message)
                .advise("Wait: the job begins by itself when another job ends or is suspended. `kubectl get trainingjobs` lists them.")
                .advise("Or ask an administrator to raise policy.maxJobsPerNamespace of the operator's chart."),
        );
    }
    if reason == "NewerProtocol" {
        let summary =
            "The operator was rolled back and does not know the protocol of the job's workers.";
        return Some(
            Diagnosis::new(Situation::NewerProtocol, summary)
                .shown_by(message)
                .advise("Upgrade the operator to the version that ran before.")
                .advise(format!("Or run `kubectl roundhouse suspend {name}`, then `kubectl roundhouse resume {name}`: the job continues from its newest checkpoint.")),
        );
    }
    let ended = facts.status().is_terminal();
    if spec.suspend && !ended {
        return Some(
            Diagnosis::new(
                Situation::Suspended,
                "The job is suspended: spec.suspend is true.",
            )
            .advise(format!(
                "To let it continue, run `kubectl roundhouse resume {name}`."
            )),
        );
    }
    None
}
