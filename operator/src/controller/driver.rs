//! The loop: observe → examine → plan → apply → report. `observe`, `examine` and `plan` do no I/O. A plan that would
//! end or delete the job because its time is over is made again once the API server has confirmed what was observed. While a watch
//! says nothing, or has broken off and not caught up, so is each plan that deletes a pod or counts an incident.

use std::sync::Arc;
use std::time::{Duration, Instant};

use roundhouse_api::TrainingJob;
use roundhouse_contract::{labels, names};
use roundhouse_planner::{
    Action, Examined, Observed, Plan, PlanReason, Rejection, ValidatedJob, WriteBlocked, examine,
    plan, plan_refused, plan_rejected,
};

use crate::controller::context::Context;
use crate::controller::error::Error;
use crate::controller::report::Reported;
use crate::job::{JobKey, JobName};
use crate::memory::JobMemory;
use crate::memory::expectations::Lag;
use crate::metrics::jobs::gpus::{self, Gpus};
use crate::runtime::panics::caught;
use crate::runtime::random::nonce;
use crate::watch::staleness::confirm::Confirmed;
use roundhouse_api::unreadable::Guarded;

/// While a write continues. It wakes the job when it ends; until then it is told once that it takes long.
const PENDING: Duration = Duration::from_secs(5);

/// Until the API server has said whether it knows PodGroups. It wakes the job then.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Until the labels of the job's namespace are known. They wake the job then.
const LABELS_OF_NAMESPACE: Duration = Duration::from_secs(5);

/// Until a watch that is late is asked about again. What it tells wakes the job.
const LATE: Duration = Duration::from_secs(5);

/// Until the watch tells that the job is gone.
const GONE: Duration = Duration::from_secs(5);

/// Until labels of nodes are read, for which a call has its deadline.
const LABELS: Duration = Duration::from_millis(100);

/// Brings one job one step further. Returns after how long to look again, even if nothing changes.
pub async fn reconcile(job: Arc<Guarded>, context: Arc<Context>) -> Option<Duration> {
    let name = JobName::of(&job.job.metadata);
    let (queue, started) = (&context.metrics.queue, Instant::now());
    queue.begun(&name);
    let next = match Box::pin(caught(further(&job, &context))).await {
        Ok(next) => next,
        Err(error) => {
            let work = &context.metrics.work;
            work.reconciled(error.label(), started.elapsed());
            let (key, asked) = (JobKey::of(&job.job.metadata), error.retry_after());
            let after = context
                .memories
                .with(&key, |memory| memory.backoff.after_error(asked));
            let seconds = after.as_secs_f32();
            tracing::warn!(%error, seconds, "a step failed; it is tried again after this time");
            Some(after)
        }
    };
    if let Some(after) = next {
        queue.due(&name, after);
    }
    next
}

/// What the caches lack of a job.
enum Missing {
    /// What was just written, for so long at most.
    OwnWrite(Duration),
    /// What a watch has not told in all this time.
    LateWatch,
}

/// What the caches lack that was written for the job, if anything.
async fn missing(
    context: &Context,
    key: &JobKey,
    job: &TrainingJob,
) -> Result<Option<Missing>, Error> {
    while let Some(lag) = context.observer.lag(key, job) {
        match lag {
            Lag::Left(left) => return Ok(Some(Missing::OwnWrite(left))),
            Lag::Overdue(write, seen) => {
                let staleness = &context.staleness;
                let is_missing = staleness.is_pod_missing(key, &write, seen).await;
                if is_missing.map_err(Error::Confirm)? {
                    return Ok(Some(Missing::LateWatch));
                }
                context
                    .memories
                    .with(key, |memory| memory.expectations.forget(&write));
            }
        }
    }
    Ok(None)
}

/// Returns after how long to look again, even if nothing changes.
async fn further(guarded: &Guarded, context: &Arc<Context>) -> Result<Option<Duration>, Error> {
    if guarded.job.spec.managed_by != labels::DEFAULT_MANAGER {
        return Ok(None);
    }
    let (job, unreadable) = (&guarded.whole()?, &guarded.unreadable);
    let started = Instant::now();
    let key = JobKey::of(&job.metadata);
    // It is told in the metrics: such a job shows nothing.
    let puts_off = |why: &str, after| {
        tracing::debug!(job = ?key, why, "the job is not looked at yet");
        context.metrics.work.reconciled(why, started.elapsed());
        Ok(Some(after))
    };
    match missing(context, &key, job).await? {
        Some(Missing::OwnWrite(left)) => return Ok(Some(left)),
        Some(Missing::LateWatch) => return puts_off("WatchLate", LATE),
        None => {}
    }
    let since = context.looks_after_jobs_since();
    let Some(mut observed) = context.observer.observe(&key, job, since) else {
        return puts_off("PodGroupsUnknown", LOOK_AGAIN);
    };
    if !context.policies.can_judge(job) {
        return puts_off("NamespaceUnknown", LABELS_OF_NAMESPACE);
    }
    if let Some(key) = &job.spec.scheduling.topology_key
        && context.topology.learn(&observed.pods, key)
    {
        return Ok(Some(LABELS));
    }
    observed.nonce = nonce()?;
    let now = jiff::Timestamp::now();
    let Examined {
        job: examined,
        refusal,
    } = examine(job, &context.settings.gpu_resources, &observed.pods);
    let unreadable = unreadable.as_ref().map(Rejection::from);
    let rejection = unreadable
        .or_else(|| refusal.map(Rejection::from))
        .or_else(|| context.policies.refuse(job, &examined, &context.memories));
    let follow_workers = |memory: &mut JobMemory| memory.workers.follow(&examined, &observed);
    context.memories.with(&key, follow_workers);
    let decide = |observed: &Observed| match &rejection {
        None => plan(&examined, observed, now),
        Some(rejection) => plan_rejected(&examined, rejection, observed, now),
    };
    let mut plan = decide(&observed);
    let stale = context.staleness.stale_watch();
    let is_doubtful = stale.is_some() && plan.is_irrevocable(&observed.status);
    if plan.needs_fresh || is_doubtful {
        let pods = &observed.pods;
        let Confirmed { fresh, clock_off } = context
            .staleness
            .confirm(job, pods, !is_doubtful)
            .await
            .map_err(Error::Confirm)?;
        (observed.fresh, observed.clock_off) = (fresh, clock_off);
        plan = decide(&observed);
    }
    if let Some((kind, age)) = stale
        && !observed.fresh
        && plan.is_irrevocable(&observed.status)
    {
        let kind = kind.as_str();
        return Err(Error::Stale { kind, age });
    }
    let pods = pods_to_create(job, &plan.actions);
    let is_deleted = context.staleness.is_job_deleted(job, &pods).await;
    if is_deleted.map_err(Error::Confirm)? {
        tracing::info!(job = ?key, "the job is gone; its pods are not made again");
        return puts_off("JobGone", GONE);
    }
    let gpus = Gpus::of(
        &observed.pods,
        &plan.status,
        gpus::per_pod(
            job.spec.workers.template.as_ref(),
            &context.settings.gpu_resources,
        ),
    );
    context.metrics.jobs.show(&key, &observed.status);
    context.metrics.jobs.see(&key, &plan.status, gpus);
    let next = carry_out(context, &key, job, &examined, &plan).await?;
    let (work, reason) = (&context.metrics.work, format!("{:?}", plan.reason));
    work.reconciled(&reason, started.elapsed());
    Ok(next)
}

async fn carry_out(
    context: &Arc<Context>,
    key: &JobKey,
    job: &TrainingJob,
    examined: &ValidatedJob,
    plan: &Plan,
) -> Result<Option<Duration>, Error> {
    tracing::debug!(job = ?key, reason = ?plan.reason, actions = plan.actions.len(), "plan");
    let (reporter, memories) = (&context.reporter, &context.memories);
    let done = match context.applier.apply(key, examined, &plan.actions).await {
        Ok(true) => reporter.report(memories, job, plan).await,
        Ok(false) => return Ok(Some(after_conflict(context, key))),
        Err(error) => {
            let before = job.status.clone().unwrap_or_default();
            let told = || error.is_pending().then(|| WriteBlocked::told_in(&before))?;
            // What the plan has decided holds also if something cannot be made yet, or nobody has answered yet.
            let reported = match error.obstacle().or_else(told) {
                Some(obstacle) => {
                    let refused = plan_refused(plan, &before, &obstacle, jiff::Timestamp::now());
                    reporter.report(memories, job, &refused).await
                }
                None if error.is_making() || error.is_pending() => {
                    reporter
                        .report(memories, job, &plan.without_replacements())
                        .await
                }
                None => Ok(Reported::Stored),
            };
            reported.and(Err(error))
        }
    };
    let later = match done {
        Ok(Reported::Stored) => None,
        Ok(Reported::Later(left)) => Some(left),
        Ok(Reported::Conflict) => return Ok(Some(after_conflict(context, key))),
        Err(error) if error.is_pending() => {
            follow(context, key, job, plan.reason);
            // The call wakes the job when it ends.
            let after = plan.requeue_after.unwrap_or(PENDING);
            return Ok(Some(after.min(PENDING)));
        }
        Err(error) => {
            follow(context, key, job, plan.reason);
            return Err(error);
        }
    };
    context.memories.with(key, |memory| memory.backoff.done());
    follow(context, key, job, plan.reason);
    Ok([plan.requeue_after, later].into_iter().flatten().min())
}

/// Asks a job that trains for its progress from now on, and any other job no more.
fn follow(context: &Context, key: &JobKey, job: &TrainingJob, reason: PlanReason) {
    let pods = context.caches.pods.of(key);
    context.memories.with(key, |memory| match reason {
        PlanReason::Training => memory
            .progress
            .follow(job, pods.values().map(|entry| &entry.value)),
        _ => memory.progress.forget(),
    });
}

fn after_conflict(context: &Context, key: &JobKey) -> Duration {
    context
        .memories
        .with(key, |memory| memory.backoff.after_conflict())
}

/// Names of the pods that these actions create.
fn pods_to_create(job: &TrainingJob, actions: &[Action]) -> Vec<String> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let pods = actions.iter().filter_map(|action| match action {
        Action::CreateWorker { index, attempt, .. } => {
            Some(names::worker_pod(name, *index, *attempt))
        }
        _ => None,
    });
    pods.collect()
}
