//! Changes and deletes a job, also as a dry run.

use anyhow::Context;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use roundhouse_api::TrainingJob;
use roundhouse_api::lenient::LenientJob;
use serde_json::Value;

use super::Cluster;

/// The plugin's name as a field manager.
pub(super) const FIELD_MANAGER: &str = "kubectl-roundhouse";

/// The option `--dry-run` of commands that change something.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct DryRun {
    /// Let the API server check the change without making it.
    #[arg(long = "dry-run")]
    pub(crate) is_on: bool,
}

impl DryRun {
    /// Suffix of a message about a change.
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
    /// The job does not exist, or the API server refuses the patch; its message says what to
    /// change.
    pub(crate) async fn patch(
        &self,
        name: &str,
        patch: &Value,
        dry_run: DryRun,
    ) -> anyhow::Result<TrainingJob> {
        let jobs: Api<LenientJob> = Api::namespaced(self.client.clone(), self.namespace());
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
    /// The job does not exist, or the API server refuses to delete it.
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

/// The API server's message without the name of the error type.
pub(super) fn refusal(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::anyhow!("{}", status.message),
        other => other.into(),
    }
}
