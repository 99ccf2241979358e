//! Server-side apply of any object.

use anyhow::{Context, ensure};
use kube::api::{Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, ResourceExt};

use super::write::{FIELD_MANAGER, refusal};
use super::{Cluster, DryRun};

impl Cluster {
    /// Applies an object. Fields that another tool owns with another value are not taken from it.
    ///
    /// # Errors
    /// The kind is unknown, the object belongs to another namespace than the one asked for, or the API server refuses.
    pub(crate) async fn apply(
        &self,
        mut object: DynamicObject,
        dry_run: DryRun,
    ) -> anyhow::Result<DynamicObject> {
        let types = object.types.clone().unwrap_or_default();
        let named = format!("{} {}", types.kind, object.name_any());
        let kind = GroupVersionKind::try_from(&types).with_context(|| named.clone())?;
        let (resource, capabilities) =
            pinned_kind(&self.client, &kind).await.with_context(|| {
                format!(
                    "{named}: the cluster does not know {} of {}",
                    types.kind, types.api_version
                )
            })?;
        let api: Api<DynamicObject> = if capabilities.scope == Scope::Cluster {
            Api::all_with(self.client.clone(), &resource)
        } else {
            let wanted = self.asked_namespace();
            let own = object.metadata.namespace.clone();
            if let (Some(own), Some(wanted)) = (&own, wanted) {
                ensure!(
                    own == wanted,
                    "{named}: its namespace is {own}: leave out -n {wanted}, or change the file"
                );
            }
            let namespace = own.unwrap_or_else(|| self.namespace().to_owned());
            object.metadata.namespace = Some(namespace.clone());
            Api::namespaced_with(self.client.clone(), &namespace, &resource)
        };
        let parameters = PatchParams {
            dry_run: dry_run.is_on,
            ..PatchParams::apply(FIELD_MANAGER)
        };
        let applied = api
            .patch(&object.name_any(), &parameters, &Patch::Apply(&object))
            .await;
        let mut applied = applied
            .map_err(refusal)
            .with_context(|| format!("{named} was not applied"))?;
        applied.types.get_or_insert(types);
        Ok(applied)
    }
}
