//! Step 4, effects: the plan's actions, in order. A repeated create finds the first one.
//!
//! Children are created, not applied: server-side apply would merge our fields and our owner
//! reference into a stranger's object of the same name. What is known to be ours is mended by server-side apply, at the
//! version that was observed.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::iter;
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use roundhouse_contract::{gang, labels};
use roundhouse_planner::{Action, ValidatedJob, status};

use self::writes::{annotate, annotation, create, delete, delete_job, mend};
use crate::cache::Job;
use crate::context::Context;
use crate::error::{CallError, Error};
use crate::expectations::Written;
use crate::resources::{Child, network_policy, service, worker};

mod groups;
mod writes;

/// Writes of one job at a time.
const AT_ONCE: usize = 16;

/// Carries out the actions, those of one kind together: workers that are asked to leave shall hear of it at
/// about the same time. `Ok(false)`: the world is not as it was observed, look again. What is as it was observed is done
/// all the same: one pod whose news are late holds up no suspension.
///
/// What cannot be made keeps nobody from leaving or from training: a quota that has no room for the fourth worker
/// is no reason for the other three to wait.
///
/// # Errors
/// A write was refused, got no answer or continues: the first one that failed, or the one that has continued for the longest
/// time. Those that do not depend on it are done all the same.
pub async fn apply(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    actions: &[Action],
) -> Result<bool, Error> {
    let mut outcome = Outcome::default();
    let (mut all_made, mut all_told) = (true, true);
    for group in actions.chunk_by(|one, next| name(one) == name(next)) {
        let Some(first) = group.first() else { continue };
        // No pod without the Service that names it, the NetworkPolicy that keeps others from it, and its group. Nobody leaves
        // before those who stay have been told of their generation.
        let waits = if is_making(first) {
            !all_made
        } else {
            matches!(first, Action::DeletePod { .. }) && !all_told
        };
        if waits {
            continue;
        }
        let done = in_turn(context, key, job, group).await;
        match first {
            Action::IssueMembership { .. } => all_told &= done.is_all(),
            first if is_making(first) => all_made &= done.is_all(),
            _ => {}
        }
        outcome = outcome.and(done);
    }
    outcome.result()
}

/// What became of some writes.
#[derive(Default)]
struct Outcome {
    looks_again: bool,
    failed: Option<Error>,
    /// The one that has continued for the longest time, and how many there are.
    pending: Option<Error>,
    num_pending: usize,
}

impl Outcome {
    fn of(result: Result<(), Error>) -> Self {
        let mut outcome = Self::default();
        match result {
            Ok(()) => {}
            Err(Error::Apply { source, action, .. }) if source.is_look_again() => {
                tracing::debug!(action, %source, "look again");
                outcome.looks_again = true;
            }
            Err(error) if error.is_pending() => {
                outcome.num_pending = 1;
                outcome.pending = Some(error);
            }
            Err(error) => outcome.failed = Some(error),
        }
        outcome
    }

    fn and(self, next: Self) -> Self {
        let longer = |one: &Error, other: &Error| one.elapsed() >= other.elapsed();
        let pending = match (self.pending, next.pending) {
            (Some(one), Some(other)) => Some(if longer(&one, &other) { one } else { other }),
            (one, other) => one.or(other),
        };
        Self {
            looks_again: self.looks_again || next.looks_again,
            failed: self.failed.or(next.failed),
            pending,
            num_pending: self.num_pending + next.num_pending,
        }
    }

    const fn is_all(&self) -> bool {
        !self.looks_again && self.failed.is_none() && self.pending.is_none()
    }

    fn result(self) -> Result<bool, Error> {
        let error = self.failed.or(self.pending);
        error.map_or(Ok(!self.looks_again), Err)
    }
}

/// The first one alone: what is refused once would be refused as often as there are workers. A creation that takes long may be
/// refused in the end, so the others wait for it, unless one has been made so. Other writes that take long go on together.
async fn in_turn(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    group: &[Action],
) -> Outcome {
    let makes = group.first().filter(|action| is_making(action));
    let all_at_once =
        makes.is_some_and(|action| context.making.is_slow_and_sure(key, name(action)));
    let (first, rest) = group.split_at(if all_at_once { group.len() } else { 1 });
    let first = together(context, key, job, first).await;
    let is_refused = first.failed.is_some() || (makes.is_some() && first.pending.is_some());
    if is_refused {
        return first;
    }
    first.and(together(context, key, job, rest).await)
}

/// All are tried, whatever becomes of the others, so that none is left half done. While as many continue as may go on at one
/// time, no more begin: each that ends wakes the job.
async fn together(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    actions: &[Action],
) -> Outcome {
    let writes: Vec<_> = actions
        .iter()
        .map(|action| one(context, key, job, action).boxed())
        .collect();
    let mut results = iter(writes).buffered(AT_ONCE);
    let mut outcome = Outcome::default();
    while outcome.num_pending < AT_ONCE
        && let Some(result) = results.next().await
    {
        outcome = outcome.and(Outcome::of(result));
    }
    outcome
}

const fn name(action: &Action) -> &'static str {
    match action {
        Action::ApplyService => "ApplyService",
        Action::ApplyNetworkPolicy => "ApplyNetworkPolicy",
        Action::MendService { .. } => "MendService",
        Action::MendNetworkPolicy { .. } => "MendNetworkPolicy",
        Action::ApplyPodGroup { .. } => "ApplyPodGroup",
        Action::DeletePodGroup { .. } => "DeletePodGroup",
        Action::CreateWorker { .. } => "CreateWorker",
        Action::IssueMembership { .. } => "IssueMembership",
        Action::EndGroup { .. } => "EndGroup",
        Action::DeletePod { .. } => "DeletePod",
        Action::DeleteJob { .. } => "DeleteJob",
    }
}

const fn is_making(action: &Action) -> bool {
    match action {
        Action::ApplyService
        | Action::ApplyNetworkPolicy
        | Action::MendService { .. }
        | Action::MendNetworkPolicy { .. }
        | Action::ApplyPodGroup { .. }
        | Action::CreateWorker { .. } => true,
        Action::IssueMembership { .. }
        | Action::EndGroup { .. }
        | Action::DeletePod { .. }
        | Action::DeletePodGroup { .. }
        | Action::DeleteJob { .. } => false,
    }
}

/// Creates an object, beside the reconcile if that takes long.
async fn make<K>(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    action: &Action,
    object: K,
    written: Written,
) -> Result<(), CallError>
where
    K: Child,
{
    let wake = ObjectRef::new(&job.key.name).within(&key.0);
    let (name, what) = (name(action), written.clone());
    let (beside, key_beside) = (Arc::clone(context), key.clone());
    let creation = async move {
        create(&beside, &key_beside, &object, written).await?;
        beside.metrics.work.acted(name);
        Ok(())
    }
    .boxed();
    context
        .making
        .make(key, wake, (name, &what), creation)
        .await
}

/// Changes or deletes an object, beside the reconcile if that takes long. `says`: see [`Making::change`].
async fn change<F>(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    action: &Action,
    (what, says): (&Written, u64),
    write: impl FnOnce(Arc<Context>, Job, Duration) -> F,
) -> Result<(), CallError>
where
    F: Future<Output = Result<(), CallError>> + Send + 'static,
{
    let wake = ObjectRef::new(&job.key.name).within(&key.0);
    let (name, beside) = (name(action), Arc::clone(context));
    let write = |deadline| {
        let write = write(Arc::clone(context), key.clone(), deadline);
        async move {
            write.await?;
            beside.metrics.work.acted(name);
            Ok(())
        }
        .boxed()
    };
    let what = (name, what, says);
    context.making.change(key, wake, what, write).await
}

/// Gives a pod an annotation.
async fn tell(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    action: &Action,
    (pod, says): (&str, u64),
    patch: serde_json::Value,
) -> Result<(), CallError> {
    let what = Written::Pod(pod.to_owned());
    let pod = pod.to_owned();
    let write = |context: Arc<Context>, key: Job, deadline| async move {
        annotate(&context, &key, &pod, patch, deadline).await
    };
    change(context, key, job, action, (&what, says), write).await
}

/// Deletes an object.
async fn remove<K: Child>(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    action: &Action,
    (object, uid): (&str, &str),
    what: Written,
) -> Result<(), CallError> {
    let (object, uid, written) = (object.to_owned(), uid.to_owned(), what.clone());
    let write = |context: Arc<Context>, key: Job, deadline| async move {
        delete::<K>(&context, &key, (&object, &uid), written, deadline).await
    };
    change(context, key, job, action, (&what, 0), write).await
}

/// Makes an object of ours what it was.
async fn repair<K: Child>(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    action: &Action,
    object: K,
    (what, version): (Written, u64),
) -> Result<(), CallError> {
    let (name, written) = (name(action), what.clone());
    let write = move |context: Arc<Context>, key: Job, deadline| async move {
        mend(&context, &key, name, object, (written, version), deadline).await
    };
    change(context, key, job, action, (&what, version), write).await
}

async fn one(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    action: &Action,
) -> Result<(), Error> {
    let scrapers = &context.settings.worker_metrics_from;
    let written = match action {
        Action::ApplyService => {
            let object: Service = service::build(&job.key);
            make(context, key, job, action, object, Written::Service).await
        }
        Action::ApplyNetworkPolicy => {
            let object: NetworkPolicy = network_policy::build(&job.key, scrapers);
            let written = Written::NetworkPolicy;
            make(context, key, job, action, object, written).await
        }
        Action::MendService { version } => {
            let object: Service = service::build(&job.key);
            let written = Written::Service;
            repair(context, key, job, action, object, (written, *version)).await
        }
        Action::MendNetworkPolicy { version } => {
            let object: NetworkPolicy = network_policy::build(&job.key, scrapers);
            let written = Written::NetworkPolicy;
            repair(context, key, job, action, object, (written, *version)).await
        }
        Action::ApplyPodGroup { gang, group, uid } => {
            let what = (*gang, group, uid.as_deref());
            groups::keep(context, key, job, action, what).await
        }
        Action::DeletePodGroup { gang, uid } => {
            groups::remove(context, key, job, action, (*gang, uid)).await
        }
        Action::CreateWorker {
            index,
            attempt,
            avoid,
            lost,
            trainer_image,
        } => {
            let image = trainer_image.as_ref();
            let place = worker::Place {
                index: *index,
                attempt: *attempt,
                avoid,
                lost,
                trainer_image: image.unwrap_or(&context.settings.trainer_image),
                pull_policy: &context.settings.trainer_pull_policy,
            };
            let pod: Pod = worker::build(job, place)?;
            let written = Written::Pod(pod.name_any());
            make(context, key, job, action, pod, written).await
        }
        Action::IssueMembership {
            pod,
            resource_version,
            membership,
        } => {
            let mut document = membership.clone();
            if document.repeats == 0 {
                // Many documents take their time; a worker's patience begins with its own.
                document.issued_at = status::time(Timestamp::now()).0.to_string();
            }
            let text = document.to_json()?;
            let patch = annotation(resource_version, (labels::MEMBERSHIP, &text));
            let says = document.generation << 16 | u64::from(document.repeats);
            tell(context, key, job, action, (pod, says), patch).await
        }
        Action::EndGroup {
            pod,
            resource_version,
        } => {
            let patch = annotation(resource_version, (gang::KUEUE_RETRIABLE, "false"));
            tell(context, key, job, action, (pod, 0), patch).await
        }
        Action::DeletePod { pod, uid, reason } => {
            tracing::info!(job = %job.key.name, pod, ?reason, "deleting a pod");
            let written = Written::Pod(pod.clone());
            remove::<Pod>(context, key, job, action, (pod, uid), written).await
        }
        Action::DeleteJob {
            uid,
            resource_version,
        } => {
            let name = &job.key.name;
            tracing::info!(job = %name, "deleting the job: its ttlSecondsAfterFinished are over");
            let which = (name.clone(), uid.clone(), resource_version.clone());
            let write = |context: Arc<Context>, key: Job, deadline| async move {
                delete_job(&context, &key, which, deadline).await
            };
            change(context, key, job, action, (&Written::Status, 0), write).await
        }
    };
    written.map_err(|source| Error::Apply {
        action: name(action),
        is_making: is_making(action),
        source,
    })
}
