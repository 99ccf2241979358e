//! Whether the job is deleted and the watch of the jobs has not reported it yet. The garbage
//! collector deletes pods that are created for such a job.

use kube::ResourceExt;
use roundhouse_api::TrainingJob;

use super::Staleness;
use crate::job::JobKey;
use crate::runtime::api::calls::call;
use crate::runtime::api::error::CallError;
use crate::runtime::api::metadata::OfKind;

impl Staleness {
    /// Whether one of these pods was created a short while ago, so that this is its second
    /// creation, and the job does not exist any more.
    ///
    /// # Errors
    /// The API server refused to read the job, or did not answer.
    pub(super) async fn is_job_deleted(
        &self,
        job: &TrainingJob,
        pods: &[String],
    ) -> Result<bool, CallError> {
        let key = JobKey::of(&job.metadata);
        if !self.memories.exists(&key) {
            return Ok(!pods.is_empty());
        }
        if !self
            .memories
            .with(&key, |memory| memory.recent_pods.has_any(pods))
        {
            return Ok(false);
        }
        let jobs = OfKind::namespaced::<TrainingJob>(&self.client, &key.namespace);
        let name = job.name_any();
        match call(|| jobs.get(&name)).await {
            Ok(live) => Ok(live.uid != job.uid() || live.deletion_timestamp.is_some()),
            Err(error) if error.code() == Some(404) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
