//! Steps 4 and 5, apply and report, and what follows from their failures.

use std::time::Duration;

use jiff::Timestamp;
use roundhouse_api::TrainingJob;
use roundhouse_planner::{Plan, PlanReason, ValidatedJob, WriteBlocked, plan_refused};

use crate::controller::context::Context;
use crate::controller::error::Error;
use crate::controller::report::Reported;
use crate::job::JobKey;
use crate::memory::JobMemory;

/// How long a job waits for a write that continues. The write wakes it when it ends; until then the
/// status says once that it takes long.
const PENDING: Duration = Duration::from_secs(5);

/// Applies the plan and reports its status. Returns when to reconcile the job again, even if
/// nothing changes.
///
/// # Errors
/// A write failed. Writes that do not depend on it are done all the same.
pub(super) async fn carry_out(
    context: &Context,
    job: &TrainingJob,
    valid: &ValidatedJob,
    plan: &Plan,
) -> Result<Option<Duration>, Error> {
    let key = JobKey::of(&job.metadata);
    tracing::debug!(job = ?key, reason = ?plan.reason, actions = plan.actions.len(), "plan");
    let done = match context.applier.apply(&key, valid, &plan.actions).await {
        Ok(true) => report(context, job, plan).await,
        Ok(false) => Ok(Reported::Conflict),
        Err(error) => report_without(context, job, plan, &error)
            .await
            .and(Err(error)),
    };
    if matches!(done, Ok(Reported::Conflict)) {
        let after_conflict = |memory: &mut JobMemory| memory.backoff.after_conflict();
        return Ok(Some(context.memories.with(&key, after_conflict)));
    }
    follow(context, job, plan.reason);
    let later = match done {
        Ok(Reported::Later(left)) => Some(left),
        Ok(Reported::Stored | Reported::Conflict) => None,
        Err(error) if error.is_pending() => {
            // The call wakes the job when it ends.
            let after = plan.requeue_after.unwrap_or(PENDING);
            return Ok(Some(after.min(PENDING)));
        }
        Err(error) => return Err(error),
    };
    context.memories.with(&key, |memory| memory.backoff.done());
    Ok([plan.requeue_after, later].into_iter().flatten().min())
}

async fn report(context: &Context, job: &TrainingJob, plan: &Plan) -> Result<Reported, Error> {
    context.reporter.report(&context.memories, job, plan).await
}

/// Reports a plan of which a part failed. What the plan has decided holds also if something cannot
/// be created yet, or a write has no answer yet.
async fn report_without(
    context: &Context,
    job: &TrainingJob,
    plan: &Plan,
    error: &Error,
) -> Result<Reported, Error> {
    let before = job.status.clone().unwrap_or_default();
    let known = || error.is_pending().then(|| WriteBlocked::of(&before))?;
    match error.write_blocked().or_else(known) {
        Some(blocked) => {
            let refused = plan_refused(plan, &before, &blocked, Timestamp::now());
            report(context, job, &refused).await
        }
        None if error.is_creation() || error.is_pending() => {
            report(context, job, &plan.without_replacements()).await
        }
        None => Ok(Reported::Stored),
    }
}

/// Polls the progress of a job that trains from now on, and not that of any other job.
fn follow(context: &Context, job: &TrainingJob, reason: PlanReason) {
    let key = JobKey::of(&job.metadata);
    let pods = context.caches.pods.of(&key);
    let pods = pods.values().map(|entry| &entry.value);
    context.memories.with(&key, |memory| match reason {
        PlanReason::Training => memory.progress.follow(job, pods),
        _ => memory.progress.forget(),
    });
}
