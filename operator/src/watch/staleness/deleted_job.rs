//! Whether the job is deleted and the watch of the jobs has not reported it yet. Pods that are created for such a job are
//! deleted by the garbage collector.

use kube::{Client, ResourceExt};
use roundhouse_api::TrainingJob;

use crate::controller::error::Error;
use crate::job::JobKey;
use crate::memory::JobMemories;
use crate::runtime::api::calls::call;
use crate::runtime::api::metadata::OfKind;

/// Whether a pod is about to be created again, and the job does not exist any more.
///
/// # Errors
/// The API server refused to read the job, or did not answer.
pub(crate) async fn is_deleted(
    client: &Client,
    memories: &JobMemories,
    key: &JobKey,
    job: &TrainingJob,
    pods: &[String],
) -> Result<bool, Error> {
    if !memories.exists(key) {
        return Ok(!pods.is_empty());
    }
    if !memories.with(key, |memory| memory.recent_pods.has_any(pods)) {
        return Ok(false);
    }
    let jobs = OfKind::namespaced::<TrainingJob>(client, &key.namespace);
    let name = job.name_any();
    match call(|| jobs.get(&name)).await {
        Ok(live) => Ok(live.uid != job.uid() || live.deletion_timestamp.is_some()),
        Err(error) if error.code() == Some(404) => Ok(true),
        Err(error) => Err(Error::Confirm(error)),
    }
}
