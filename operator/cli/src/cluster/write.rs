//! Changes of a job, and whether they are only tried.

use anyhow::Context;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use roundhouse_api::TrainingJob;
use roundhouse_api::unreadable::Guarded;
use serde_json::Value;

use super::Cluster;

/// Who changed a field, as the API server notes it.
pub(super) const FIELD_MANAGER: &str = "kubectl-roundhouse";

/// Whether a change is only tried.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct DryRun {
    /// Let the API server check the change, and change nothing.
    #[arg(long = "dry-run")]
    pub(crate) is_on: bool,
}

impl DryRun {
    /// What is added to a message about a change.
    pub(crate) const fn suffix(self) -> &'static str {
        if self.is_on {
            " (dry run: nothing was changed)"
        } else {
            ""
        }
    }
}

impl Cluster {
    /// Merges a patch into a job.
    ///
    /// # Errors
    /// There is no such job, or the API server refuses; its words say what to change.
    pub(crate) async fn patch(
        &self,
        name: &str,
        patch: &Value,
        dry_run: DryRun,
    ) -> anyhow::Result<TrainingJob> {
        let jobs: Api<Guarded> = Api::namespaced(self.client.clone(), self.namespace());
        let parameters = PatchParams {
            dry_run: dry_run.is_on,
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patched = jobs.patch(name, &parameters, &Patch::Merge(patch)).await;
        let patched = patched
            .map_err(refusal)
            .with_context(|| format!("TrainingJob {name} was not changed"))?;
        Ok(patched.whole()?)
    }

    /// Deletes a job; its pods leave within their grace period.
    ///
    /// # Errors
    /// There is no such job, or the API server refuses.
    pub(crate) async fn delete(&self, name: &str, dry_run: DryRun) -> anyhow::Result<()> {
        let jobs: Api<TrainingJob> = Api::namespaced(self.client.clone(), self.namespace());
        let parameters = DeleteParams {
            dry_run: dry_run.is_on,
            ..DeleteParams::default()
        };
        let deleted = jobs.delete(name, &parameters).await;
        deleted
            .map_err(refusal)
            .with_context(|| format!("TrainingJob {name} was not deleted"))?;
        Ok(())
    }
}

/// The API server's own words, without the type of the error.
pub(super) fn refusal(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::anyhow!("{}", status.message),
        other => other.into(),
    }
}
