//! The loop over one job: postponed? → observe → validate → plan → confirm if irrevocable → apply →
//! report. The steps from `observe` to `plan` do no I/O.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use roundhouse_api::TrainingJob;
use roundhouse_api::lenient::LenientJob;
use roundhouse_contract::{labels, names};
use roundhouse_planner::{
    Action, Observed, Plan, PlanReason, Rejection, ValidatedJob, Validation, plan, plan_rejected,
    validate_with,
};

use crate::controller::carry_out::carry_out;
use crate::controller::context::Context;
use crate::controller::error::Error;
use crate::controller::postponed::{Postponed, Stop};
use crate::job::{JobKey, JobName};
use crate::memory::JobMemory;
use crate::metrics::jobs::gpus::{self, Gpus};
use crate::runtime::panics::caught;
use crate::runtime::random::nonce;
use crate::watch::staleness::Stale;
use crate::watch::staleness::confirm::Confirmed;

/// Brings one job one step further. Returns the time after which to reconcile it again, even if
/// nothing changes.
pub async fn reconcile(job: Arc<LenientJob>, context: Arc<Context>) -> Option<Duration> {
    let name = JobName::of(&job.job.metadata);
    let (queue, work) = (&context.metrics.queue, &context.metrics.work);
    let started = Instant::now();
    queue.begun(&name);
    let next = match Box::pin(caught(reconcile_job(&job, &context))).await {
        Ok(Reconciled { reason, next }) => {
            work.reconciled(&format!("{reason:?}"), started.elapsed());
            next
        }
        Err(Stop::OtherManager) => None,
        Err(Stop::Postponed(why)) => {
            if let Some(label) = why.label() {
                tracing::debug!(label, "the reconcile is postponed");
                work.reconciled(label, started.elapsed());
            }
            Some(why.after())
        }
        Err(Stop::Failed(error)) => {
            work.reconciled(error.label(), started.elapsed());
            let (key, asked) = (JobKey::of(&job.job.metadata), error.retry_after());
            let after_error = |memory: &mut JobMemory| memory.backoff.after_error(asked);
            let after = context.memories.with(&key, after_error);
            let seconds = after.as_secs_f32();
            tracing::warn!(%error, seconds, "a reconcile failed; it is tried again after this time");
            Some(after)
        }
    };
    if let Some(after) = next {
        queue.due(&name, after);
    }
    next
}

/// A plan was carried out.
struct Reconciled {
    reason: PlanReason,
    /// When to reconcile the job again, even if nothing changes.
    next: Option<Duration>,
}

async fn reconcile_job(lenient: &LenientJob, context: &Context) -> Result<Reconciled, Stop> {
    if lenient.job.spec.managed_by != labels::DEFAULT_MANAGER {
        return Err(Stop::OtherManager);
    }
    let job = &lenient.whole()?;
    // A watch may catch up after the observation, which then counts as stale, too.
    let stale = context.staleness.of_watches();
    own_writes_are_seen(context, job).await?;
    let observed = observe(context, job)?;
    let decision = Decision::new(context, job, lenient, &observed);
    let first = decision.plan(&observed);
    let stale = stale.or_else(|| context.staleness.of_watches());
    let confirmed = confirm_if_irrevocable(context, job, &decision, stale, observed, first);
    let (observed, plan) = confirmed.await?;
    job_exists(context, job, &plan).await?;
    show(context, job, &observed, &plan);
    let next = carry_out(context, job, &decision.job, &plan).await?;
    let reason = plan.reason;
    Ok(Reconciled { reason, next })
}

/// Postpones the job while the caches do not show what was just written for it.
async fn own_writes_are_seen(context: &Context, job: &TrainingJob) -> Result<(), Stop> {
    let key = JobKey::of(&job.metadata);
    let lag = || context.observer.lag(&key, job);
    let stale = context.staleness.of_writes(&key, lag).await;
    match stale.map_err(Error::Confirm)? {
        Some(stale) => Err(Postponed::Stale(stale).into()),
        None => Ok(()),
    }
}

/// Step 1. Postpones the job while something about it is not known at all.
fn observe(context: &Context, job: &TrainingJob) -> Result<Observed, Stop> {
    let (key, since) = (JobKey::of(&job.metadata), context.looks_after_jobs_since());
    let observed = context.observer.observe(&key, job, since);
    let observed = observed.ok_or(Postponed::PodGroupsUnknown)?;
    if !context.policies.can_judge(job) {
        return Err(Postponed::NamespaceUnknown.into());
    }
    let topology_key = job.spec.scheduling.topology_key.as_ref();
    if topology_key.is_some_and(|label| context.topology.learn(&observed.pods, label)) {
        return Err(Postponed::NodeLabelsUnknown.into());
    }
    let nonce = nonce()?;
    Ok(Observed { nonce, ..observed })
}

/// Steps 2 and 3, validate and plan: the job as it can run, and the plan for the observed objects.
struct Decision {
    job: ValidatedJob,
    /// Why the job gets no new pods, if it is not accepted.
    rejection: Option<Rejection>,
    now: Timestamp,
}

impl Decision {
    fn new(
        context: &Context,
        job: &TrainingJob,
        lenient: &LenientJob,
        observed: &Observed,
    ) -> Self {
        let Validation {
            job: valid,
            refusal,
        } = validate_with(job, &context.settings.gpu_resources, &observed.pods);
        let unreadable = lenient.unreadable.as_ref().map(Rejection::from);
        let rejection = unreadable
            .or_else(|| refusal.map(Rejection::from))
            .or_else(|| context.policies.refuse(job, &valid, &context.memories));
        let key = JobKey::of(&job.metadata);
        context.memories.follow_workers(&key, &valid, observed);
        Self {
            job: valid,
            rejection,
            now: Timestamp::now(),
        }
    }

    fn plan(&self, observed: &Observed) -> Plan {
        match &self.rejection {
            None => plan(&self.job, observed, self.now),
            Some(rejection) => plan_rejected(&self.job, rejection, observed, self.now),
        }
    }
}

/// Plans again once the API server has confirmed what was observed, if the plan needs that: it ends
/// or deletes the job because its time is over, or deletes a pod or counts an incident while a
/// watch is stale. `stale`: the watch that was stale when the job was observed, or has become so.
async fn confirm_if_irrevocable(
    context: &Context,
    job: &TrainingJob,
    decision: &Decision,
    stale: Option<Stale>,
    mut observed: Observed,
    mut plan: Plan,
) -> Result<(Observed, Plan), Error> {
    let is_doubtful = stale.is_some() && plan.is_irrevocable(&observed.status);
    if plan.needs_fresh || is_doubtful {
        let confirmed = context.staleness.confirm(job, &observed.pods, !is_doubtful);
        let Confirmed { fresh, clock_off } = confirmed.await.map_err(Error::Confirm)?;
        (observed.fresh, observed.clock_off) = (fresh, clock_off);
        plan = decision.plan(&observed);
    }
    match stale {
        Some(Stale::Watch { kind, age })
            if !observed.fresh && plan.is_irrevocable(&observed.status) =>
        {
            let kind = kind.as_str();
            Err(Error::Stale { kind, age })
        }
        _ => Ok((observed, plan)),
    }
}

/// Postpones the job if it is deleted and the plan creates pods again that it had a short while
/// ago.
async fn job_exists(context: &Context, job: &TrainingJob, plan: &Plan) -> Result<(), Stop> {
    let stale = context.staleness.of_job(job, &new_pods(job, plan)).await;
    match stale.map_err(Error::Confirm)? {
        Some(stale) => {
            tracing::info!("the job is deleted; its pods are not created again");
            Err(Postponed::Stale(stale).into())
        }
        None => Ok(()),
    }
}

/// Shows in the metrics what was observed and planned.
fn show(context: &Context, job: &TrainingJob, observed: &Observed, plan: &Plan) {
    let (key, template) = (
        JobKey::of(&job.metadata),
        job.spec.workers.template.as_ref(),
    );
    let per_pod = gpus::per_pod(template, &context.settings.gpu_resources);
    let gpus = Gpus::of(&observed.pods, &plan.status, per_pod);
    context.metrics.jobs.show(&key, &observed.status);
    context.metrics.jobs.see(&key, &plan.status, gpus);
}

/// Names of the pods that the plan creates.
fn new_pods(job: &TrainingJob, plan: &Plan) -> Vec<String> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let pods = plan.actions.iter().filter_map(|action| match action {
        Action::CreateWorker { index, attempt, .. } => {
            Some(names::worker_pod(name, *index, *attempt))
        }
        _ => None,
    });
    pods.collect()
}
