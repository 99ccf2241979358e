//! Step 4, effects: the plan's actions, in order. A repeated create finds the first one.
//!
//! Children are created, not applied: server-side apply would merge our fields and our owner
//! reference into a stranger's object of the same name. What is known to be ours is mended by server-side apply, at the
//! version that was observed.

use std::sync::Arc;

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
/// A write was refused or got no answer: the first one. Those that do not depend on it are done all the same.
pub async fn apply(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    actions: &[Action],
) -> Result<bool, Error> {
    let (mut failed, mut as_observed, mut all_made) = (None, true, true);
    for group in actions.chunk_by(|one, next| name(one) == name(next)) {
        let makes = group.first().is_some_and(is_making);
        // No pod without the Service that names it, the NetworkPolicy that keeps others from it, and its group.
        if makes && !all_made {
            continue;
        }
        let done = in_turn(context, key, job, group).await;
        all_made &= !makes || matches!(done, Ok(true));
        match done {
            Ok(was_as_observed) => as_observed &= was_as_observed,
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
    }
    failed.map_or(Ok(as_observed), Err)
}

/// The first one alone: what is refused once would be refused as often as there are workers. What takes long and is made
/// in the end is made for all at once.
async fn in_turn(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    group: &[Action],
) -> Result<bool, Error> {
    let all_at_once = group.first().is_some_and(is_making) && context.making.is_slow_and_sure(key);
    let (first, rest) = group.split_at(if all_at_once { group.len() } else { 1 });
    let first = together(context, key, job, first).await?;
    let rest = together(context, key, job, rest).await?;
    Ok(first && rest)
}

/// All are tried, whatever becomes of the others, so that none is left half done.
async fn together(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    actions: &[Action],
) -> Result<bool, Error> {
    let writes: Vec<_> = actions
        .iter()
        .map(|action| one(context, key, job, action).boxed())
        .collect();
    let results: Vec<_> = iter(writes).buffered(AT_ONCE).collect().await;
    let mut as_observed = true;
    for (action, result) in actions.iter().zip(results) {
        let (is_creation, action) = (is_making(action), name(action));
        match result {
            // What is made is counted when it is done, however late that is.
            Ok(()) if is_creation => {}
            Ok(()) => context.metrics.work.acted(action),
            Err(Error::Apply { source, .. }) if source.is_look_again() => {
                tracing::debug!(job = %job.key.name, action, %source, "look again");
                as_observed = false;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(as_observed)
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

/// Gives a pod an annotation, beside the reconcile if that takes long.
async fn tell(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    action: &Action,
    (pod, says): (&str, u64),
    patch: serde_json::Value,
) -> Result<(), CallError> {
    let wake = ObjectRef::new(&job.key.name).within(&key.0);
    let what = Written::Pod(pod.to_owned());
    let (beside, key_beside, pod) = (Arc::clone(context), key.clone(), pod.to_owned());
    let write = |deadline| {
        async move { annotate(&beside, &key_beside, &pod, patch, deadline).await }.boxed()
    };
    let what = (name(action), &what, says);
    context.making.change(key, wake, what, write).await
}

/// Deletes an object, beside the reconcile if that takes long.
async fn remove<K: Child>(
    context: &Arc<Context>,
    key: &Job,
    job: &ValidatedJob,
    action: &Action,
    (object, uid): (&str, &str),
    what: Written,
) -> Result<(), CallError> {
    let wake = ObjectRef::new(&job.key.name).within(&key.0);
    let (beside, key_beside, written) = (Arc::clone(context), key.clone(), what.clone());
    let (object, uid) = (object.to_owned(), uid.to_owned());
    let write = |deadline| {
        async move {
            let which = (&*object, &*uid);
            delete::<K>(&beside, &key_beside, which, written, deadline).await
        }
        .boxed()
    };
    let what = (name(action), &what, 0);
    context.making.change(key, wake, what, write).await
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
            mend(context, key, name(action), object, written, *version).await
        }
        Action::MendNetworkPolicy { version } => {
            let object: NetworkPolicy = network_policy::build(&job.key, scrapers);
            let written = Written::NetworkPolicy;
            mend(context, key, name(action), object, written, *version).await
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
            delete_job(context, key, name, uid, resource_version).await
        }
    };
    written.map_err(|source| Error::Apply {
        action: name(action),
        is_making: is_making(action),
        source,
    })
}
