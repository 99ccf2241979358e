//! Server-side apply of any object.

use anyhow::{Context, anyhow, ensure};
use kube::api::{Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind, Status};
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, ResourceExt};

use super::write::{FIELD_MANAGER, refusal};
use super::{Cluster, DryRun};

/// The API server's reason for a conflict of field managers.
const CONFLICT: &str = "FieldManagerConflict";

impl Cluster {
    /// Applies an object. Only with `force` it overwrites a field that another tool has set to
    /// another value. Fields that `scale`, `suspend` or `resume` have changed always follow the
    /// file.
    ///
    /// # Errors
    /// The kind is unknown, the object has another namespace than -n, or the API server refuses the
    /// object.
    pub(crate) async fn apply(
        &self,
        mut object: DynamicObject,
        dry_run: DryRun,
        force: bool,
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
        let (name, patch) = (object.name_any(), Patch::Apply(&object));
        let mut parameters = PatchParams {
            dry_run: dry_run.is_on,
            force,
            ..PatchParams::apply(FIELD_MANAGER)
        };
        let mut applied = api.patch(&name, &parameters, &patch).await;
        if let Err(kube::Error::Api(status)) = &applied
            && is_with_ourselves(status)
        {
            parameters.force = true;
            applied = api.patch(&name, &parameters, &patch).await;
        }
        let mut applied = applied
            .map_err(|error| conflict(&error).unwrap_or_else(|| refusal(error)))
            .with_context(|| format!("{named} was not applied"))?;
        applied.types.get_or_insert(types);
        Ok(applied)
    }
}

/// The conflicts of an apply: the API server's message, which names the manager, and the field.
fn conflicts(status: &Status) -> Vec<(&str, &str)> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .filter(|cause| cause.reason == CONFLICT)
        .map(|cause| (cause.message.as_str(), cause.field.as_str()))
        .collect()
}

/// Whether this plugin's own merge patches are the only other owner of the fields. For the API
/// server, an apply and a merge with one manager name are two managers.
fn is_with_ourselves(status: &Status) -> bool {
    let ours = format!("conflict with \"{FIELD_MANAGER}\"");
    let conflicts = conflicts(status);
    !conflicts.is_empty() && conflicts.iter().all(|(with, _)| with.starts_with(&ours))
}

/// A conflict as an error that says what to do.
fn conflict(error: &kube::Error) -> Option<anyhow::Error> {
    let kube::Error::Api(status) = error else {
        return None;
    };
    let named: Vec<String> = conflicts(status)
        .iter()
        .map(|(with, field)| format!("{}: {with}", field.trim_start_matches('.')))
        .collect();
    (!named.is_empty()).then(|| {
        anyhow!(
            "{}. Remove the field from the file to keep that value, or give --force-conflicts to set the file's value",
            named.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(causes: &[(&str, &str)]) -> kube::Error {
        let causes: Vec<_> = causes
            .iter()
            .map(|(with, field)| json!({"reason": CONFLICT, "message": with, "field": field}))
            .collect();
        let status = json!({"status": "Failure", "message": "Apply failed", "reason": "Conflict", "code": 409,
            "details": {"causes": causes}});
        kube::Error::Api(serde_json::from_value(status).unwrap())
    }

    fn is_ours(error: &kube::Error) -> bool {
        matches!(error, kube::Error::Api(status) if is_with_ourselves(status))
    }

    #[test]
    fn conflict_with_another_tool_names_field_and_advice() {
        let ours = "conflict with \"kubectl-roundhouse\" using roundhouse.dev/v1alpha1 at 2026-11-26T00:00:00Z";
        let other = "conflict with \"kube-controller-manager\" with subresource \"scale\"";
        let field = ".spec.workers.replicas";
        assert!(is_ours(&error(&[(ours, field)])));
        let mixed = error(&[(ours, ".spec.suspend"), (other, field)]);
        assert!(!is_ours(&mixed) && !is_ours(&error(&[])));
        let words = conflict(&mixed).unwrap().to_string();
        for part in [
            "spec.workers.replicas: conflict with \"kube-c",
            "--force-conflicts",
        ] {
            assert!(words.contains(part), "{words}");
        }
        assert!(conflict(&error(&[])).is_none());
    }
}
