//! Calls the policies in order: the whole of a plan on one screen.

use jiff::Timestamp;
use roundhouse_api::{ConditionReason, ConditionType, EventReason, WorkersStatus};
use roundhouse_contract::labels;

use crate::draft::{Draft, event};
use crate::failures;
use crate::failures::{nodes, replacements};
use crate::generation::completed;
use crate::generation::copy_pairs;
use crate::generation::form;
use crate::generation::reissue;
use crate::lifecycle::deadlines;
use crate::lifecycle::deleting;
use crate::lifecycle::finish;
use crate::lifecycle::newer_protocol;
use crate::lifecycle::outdated;
use crate::lifecycle::suspend;
use crate::observed::Observed;
use crate::plan::{Plan, PlanReason};
use crate::rejection::Rejection;
use crate::replicas::{Replicas, lives};
use crate::status::not_accepted;
use crate::status::progress;
use crate::status::waiting;
use crate::status::{counted, refresh_condition, set_condition, time};
use crate::validate::ValidatedJob;
use crate::worker_state;
use crate::workers::{leave_domain, owned_objects, replica_labels};

#[must_use]
pub fn plan(job: &ValidatedJob, observed: &Observed, now: Timestamp) -> Plan {
    decide(job, None, observed, now)
}

/// What a job that is not accepted needs next: the same as [`plan`], without new pods. Its running
/// pods continue. The job is still suspended, ended, cleaned up and formed into new generations as
/// its metadata, its status and the readable part of its spec require.
#[must_use]
pub fn plan_rejected(
    job: &ValidatedJob,
    rejection: &Rejection,
    observed: &Observed,
    now: Timestamp,
) -> Plan {
    let job = not_accepted::as_it_runs(job, observed);
    decide(&job, Some(rejection), observed, now)
}

fn decide(
    job: &ValidatedJob,
    rejection: Option<&Rejection>,
    observed: &Observed,
    now: Timestamp,
) -> Plan {
    if !job.has_large_replicas() {
        return policies(Draft::new(job, rejection, observed, now));
    }
    let replicas = Replicas::of(job, observed, now);
    let (as_workers, view) = (job.with_replicas_as_workers(), replicas.view(observed));
    let draft = Draft::new(&as_workers, rejection, &view, now);
    let mut plan = policies(draft.for_replicas(job, &observed.pods, &replicas));
    replicas.expand(job, &mut plan);
    plan
}

fn policies(mut draft: Draft<'_>) -> Plan {
    let (job, rejection) = (draft.job, draft.rejection);
    if job.deleting {
        let reason = deleting::explain(&mut draft);
        return draft.end(reason);
    }
    describe(&mut draft);
    replacements::note_lost(&mut draft);
    let nothing_to_run =
        finish::after_the_end(&mut draft).or_else(|| newer_protocol::leave_alone(&mut draft));
    if let Some(reason) = nothing_to_run {
        return draft.end(reason);
    }
    match rejection {
        None => accept(&mut draft),
        Some(rejection) => not_accepted::reject(&mut draft, rejection),
    }
    draft.status.blocked.clear();
    draft.status.unschedulable = None;
    draft.status.queued = draft.is_queued();
    nodes::forget(&mut draft);
    completed::note(&mut draft);
    if let Some(membership) = &mut draft.status.membership {
        membership.formed = draft.members.formed;
    }
    let reason = finish::success(&mut draft)
        .or_else(|| suspend::pause(&mut draft))
        .or_else(|| outdated::leave(&mut draft))
        .or_else(|| suspend::resume(&mut draft))
        .or_else(|| failures::give_up(&mut draft))
        .or_else(|| deadlines::too_late(&mut draft))
        .unwrap_or_else(|| make_and_form(&mut draft));
    let reason = match rejection {
        None => reason,
        Some(rejection) => not_accepted::show(&mut draft, rejection, reason),
    };
    draft.end(reason)
}

fn make_and_form(draft: &mut Draft<'_>) -> PlanReason {
    leave_domain::mark(draft);
    let barrier = owned_objects::barrier(draft);
    if !draft.recorded && barrier.is_none() {
        owned_objects::make(draft);
    }
    // This comes after the incident that ended a life is stored, and before a generation forms, so
    // that its members belong to the present lives.
    if !draft.recorded {
        lives::begin(draft);
    }
    let reason = form::form(draft);
    // Removal comes last, so that in one plan the remaining workers get their membership first. A
    // plan that raises a generation removes surplus workers at once: they were chosen from the
    // previous generation (for example its straggler).
    if !draft.recorded {
        owned_objects::remove_surplus(draft, barrier.is_some() || draft.rejection.is_some());
        if reason == PlanReason::Training {
            reissue::late(draft);
            copy_pairs::keep(draft);
        }
        replica_labels::correct(draft);
    }
    match barrier {
        Some(barrier) => owned_objects::report_barrier(draft, barrier, reason),
        None => reason,
    }
}

/// Sets the parts of the status that only describe and decide nothing.
fn describe(draft: &mut Draft<'_>) {
    let spares = draft.members.num_spares();
    // Processes of a sharded spare that restarted are not Ready before their next generation.
    let ready = draft.members.num_ready() - draft.members.num_ready_spares();
    let spares = draft.replicas.map_or(spares, |it| it.num_fit_spares);
    let active = draft.members.that_live();
    let active = active.iter().filter(|pod| !pod.unreachable).count();
    let pods = draft.pods.iter();
    let pods = pods
        .filter(|pod| worker_state::may_hold_resources(pod))
        .count();
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let wanted = draft.job.replicas;
    draft.status.observed_generation = Some(draft.job.generation);
    draft.status.workers = Some(WorkersStatus {
        wanted,
        ready: count(ready),
        active: count(active),
        spares: count(spares),
        pods: count(pods),
        left_out: None,
        summary: format!("{ready}/{wanted}"),
    });
    draft.status.replicas = count(draft.members.num_without_spares(draft.job.spares));
    draft.status.selector = Some(format!("{}={}", labels::JOB_UID, draft.job.identity.uid));
    progress::show(draft);
}

fn accept(draft: &mut Draft<'_>) {
    if !draft.job.suspend {
        let now = time(draft.now);
        let was_queued = draft.is_starting() && waiting::was_queued(draft);
        let leaves_queue = was_queued && !draft.is_queued();
        let start = &mut draft.status.start_time;
        *start = start.take().filter(|_| !leaves_queue).or(Some(now));
    }
    let kind = ConditionType::Accepted;
    let message = acceptance(draft);
    if draft.status.is_true(kind) {
        // The spec may have changed since the condition was set.
        return refresh_condition(&mut draft.status, kind, message);
    }
    let reason = ConditionReason::Valid;
    set_condition(
        &mut draft.status,
        kind,
        true,
        reason,
        message.clone(),
        draft.now,
    );
    draft.events.push(event(EventReason::Accepted, message));
}

fn acceptance(draft: &Draft<'_>) -> String {
    let job = draft.own_job;
    let (min, max) = (job.min_replicas, job.max_replicas);
    let procs = counted(job.procs_per_worker, "process");
    if job.has_large_replicas() {
        return of_large_replicas(job);
    }
    let workers = counted(job.replicas, "worker");
    let spares = match job.spares {
        0 => String::new(),
        spares => format!(", and {}", counted(spares, "spare")),
    };
    if min < max {
        format!("{workers} with {procs} each, between {min} and {max}{spares}")
    } else {
        format!("{workers} with {procs} each{spares}")
    }
}

fn of_large_replicas(job: &ValidatedJob) -> String {
    let replicas = counted(job.replicas, "replica");
    let pods = counted(job.pods_per_replica, "pod");
    let procs = counted(job.procs_per_worker, "process");
    let range = if job.min_replicas < job.max_replicas {
        format!(
            ", between {} and {} replicas",
            job.min_replicas, job.max_replicas
        )
    } else {
        String::new()
    };
    let spares = match job.spares {
        0 => String::new(),
        spares => format!(", and {}", counted(spares, "spare pod")),
    };
    format!("{replicas} of {pods} with {procs} per pod{range}{spares}")
}
