//! The single writes. Each is remembered until the caches show it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::ObjectMeta;
use kube::{Api, Client, ResourceExt};
use roundhouse_contract::labels;
use roundhouse_planner::PodGroup;
use serde_json::{Value, json};

use crate::job::JobKey;
use crate::memory::expectations::Written;
use crate::memory::repairs::Drift;
use crate::memory::{JobMemories, JobMemory};
use crate::runtime::api::calls::{call, call_within, patch_params, post_params};
use crate::runtime::api::error::CallError;
use crate::runtime::api::metadata::OfKind;
use crate::runtime::api::metadata::version;
use crate::runtime::api::object::NamespacedObject;
use crate::watch::pod_group_kinds::GroupKind;
use crate::watch::projection;
use roundhouse_api::lenient::LenientJob;

/// Writes objects of jobs, and remembers each write until the caches show it.
#[derive(Clone)]
pub(crate) struct ObjectWriter {
    client: Client,
    memories: Arc<JobMemories>,
}

impl ObjectWriter {
    pub(crate) const fn new(client: Client, memories: Arc<JobMemories>) -> Self {
        Self { client, memories }
    }

    /// Creates an object of a job.
    pub(super) async fn create<K: NamespacedObject>(
        &self,
        key: &JobKey,
        object: &K,
        written: Written,
        deadline: Duration,
    ) -> Result<(), CallError> {
        let api: Api<K> = Api::namespaced(self.client.clone(), &key.namespace);
        let parameters = post_params();
        let result = call_within(deadline, || api.create(&parameters, object)).await;
        match result {
            Ok(made) => {
                let at = version(made.meta().resource_version.as_deref());
                self.memories.with(key, |memory| {
                    match &written {
                        Written::Pod(name) => memory.recent_pods.insert(name.clone()),
                        Written::Status => {}
                        Written::Service | Written::NetworkPolicy | Written::PodGroup(_) => {
                            memory.repairs.note(written.clone(), Drift::Deleted);
                        }
                    }
                    memory.expectations.wrote(written, at);
                });
                Ok(())
            }
            Err(error) if error.code() == Some(409) && error.is_conflict() => {
                let name = object.name_any();
                let all = OfKind::namespaced::<K>(&self.client, &key.namespace);
                let other = call(|| all.get(&name)).await?;
                // An object that lost our labels is not watched. It counts as another owner's:
                // otherwise the creation would be repeated indefinitely.
                if !projection::is_child(&other, &key.uid) {
                    let taken = format!("{} {name}", K::kind(&()));
                    self.memories
                        .with(key, |memory| memory.taken_names.insert(taken));
                }
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Repairs the drift of an object of ours, unless it has changed since it was observed. Fields
    /// that other clients added stay.
    pub(super) async fn repair<K: NamespacedObject>(
        &self,
        key: &JobKey,
        action: &'static str,
        mut object: K,
        (written, observed): (Written, u64),
        deadline: Duration,
    ) -> Result<(), CallError> {
        let name = object.name_any();
        tracing::info!(job = %name, action, "repairing drift");
        object.meta_mut().resource_version = Some(observed.to_string());
        let api: Api<K> = Api::namespaced(self.client.clone(), &key.namespace);
        let parameters = PatchParams::apply(labels::FIELD_MANAGER).force();
        let patch = Patch::Apply(&object);
        let answer = call_within(deadline, || api.patch(&name, &parameters, &patch)).await;
        // A refused repair is paced, too. A missing answer proves nothing.
        if answer.as_ref().err().is_none_or(CallError::is_refusal) {
            self.memories.with(key, |memory| {
                memory.repairs.note(written.clone(), Drift::Modified);
            });
        }
        let at = version(answer?.meta().resource_version.as_deref());
        let wrote = |memory: &mut JobMemory| memory.expectations.wrote(written, at);
        self.memories.with(key, wrote);
        Ok(())
    }

    /// Gives a pod annotations or labels.
    pub(super) async fn patch_metadata(
        &self,
        key: &JobKey,
        pod: &str,
        patch: &Value,
        deadline: Duration,
    ) -> Result<(), CallError> {
        let pods = OfKind::namespaced::<Pod>(&self.client, &key.namespace);
        let (parameters, wanted) = (patch_params(), Patch::Merge(patch));
        let request = || pods.patch(pod, &parameters, &wanted);
        let written = call_within(deadline, request).await?;
        let at = version(written.resource_version.as_deref());
        let what = Written::Pod(pod.to_owned());
        let wrote = |memory: &mut JobMemory| memory.expectations.wrote(what, at);
        self.memories.with(key, wrote);
        match undone(patch, &written) {
            None => Ok(()),
            Some(key) => Err(CallError::Undone(format!(
                "{key} of Pod {pod} is not what was written: a mutating admission webhook or policy changes it"
            ))),
        }
    }

    /// Changes a PodGroup so that it says `wanted`.
    pub(super) async fn patch_group<K: GroupKind>(
        &self,
        key: &JobKey,
        (name, patch): (&str, &Value),
        (gang, wanted): (u32, &PodGroup),
        deadline: Duration,
    ) -> Result<(), CallError> {
        let groups = OfKind::namespaced::<K>(&self.client, &key.namespace);
        let (parameters, patch) = (patch_params(), Patch::Merge(patch));
        let request = || groups.patch(name, &parameters, &patch);
        let written = call_within(deadline, request).await?;
        // A write that failed was not reverted: the back-off of the job paces the next attempt.
        let at = version(written.resource_version.as_deref());
        self.memories.with(key, |memory| {
            memory.repairs.note_group(gang, Drift::Modified, wanted);
            memory.expectations.wrote(Written::PodGroup(gang), at);
        });
        Ok(())
    }

    /// Notes that the operator removes the PodGroup of a gang: creating it again is no repair.
    pub(super) fn note_group_removed(&self, key: &JobKey, gang: u32) {
        let removed = |memory: &mut JobMemory| memory.repairs.group_removed(gang);
        self.memories.with(key, removed);
    }

    /// Writes the status of a job.
    pub(crate) async fn patch_status(
        &self,
        key: &JobKey,
        (name, patch): (&str, &Value),
        deadline: Duration,
    ) -> Result<(), CallError> {
        // The answer may have parts that cannot be read.
        let jobs: Api<LenientJob> = Api::namespaced(self.client.clone(), &key.namespace);
        let (parameters, patch) = (patch_params(), Patch::Merge(patch));
        let request = || jobs.patch_status(name, &parameters, &patch);
        let written = call_within(deadline, request).await?;
        let at = version(written.job.metadata.resource_version.as_deref());
        self.memories.with(key, |memory| {
            memory.expectations.wrote(Written::Status, at);
        });
        Ok(())
    }

    /// Deletes the object of this name, if it is still the one that was observed.
    pub(super) async fn delete<K: NamespacedObject>(
        &self,
        key: &JobKey,
        (name, observed): (&str, Preconditions),
        written: Written,
        deadline: Duration,
    ) -> Result<(), CallError> {
        let all = OfKind::namespaced::<K>(&self.client, &key.namespace);
        let parameters = DeleteParams {
            preconditions: Some(observed),
            ..DeleteParams::default()
        };
        let answer = call_within(deadline, || all.delete(name, &parameters)).await;
        let at = match answer {
            Ok(left) => version(left.and_then(|it| it.resource_version).as_deref()),
            // The object is gone, and the cache does not show that yet.
            Err(error) if error.code() == Some(404) => u64::MAX,
            Err(error) => return Err(error),
        };
        let deleted = |memory: &mut JobMemory| memory.expectations.deleted(written, at);
        self.memories.with(key, deleted);
        Ok(())
    }

    /// Deletes the job that was observed and no other, in the foreground, as Kubernetes deletes its
    /// Jobs: the job exists until everything that it owns is deleted.
    pub(super) async fn delete_job(
        &self,
        key: &JobKey,
        (name, uid, resource_version): (String, String, String),
        deadline: Duration,
    ) -> Result<(), CallError> {
        let jobs: Api<LenientJob> = Api::namespaced(self.client.clone(), &key.namespace);
        let parameters = DeleteParams {
            preconditions: Some(preconditions(&uid, Some(&resource_version))),
            propagation_policy: Some(PropagationPolicy::Foreground),
            ..DeleteParams::default()
        };
        match call_within(deadline, || jobs.delete(&name, &parameters)).await {
            Ok(answer) => {
                let at = answer
                    .left()
                    .and_then(|it| it.job.metadata.resource_version);
                let at = version(at.as_deref());
                self.memories.with(key, |memory| {
                    memory.expectations.wrote(Written::Status, at);
                });
                Ok(())
            }
            // The job is gone, and the cache does not show that yet.
            Err(error) if error.code() == Some(404) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The first annotation or label of a patch that the object does not have after the patch.
fn undone(patch: &Value, object: &ObjectMeta) -> Option<String> {
    let missing = |field: &'static str, kind: &str, has: Option<&BTreeMap<String, String>>| {
        let wanted = patch["metadata"][field].as_object();
        let mut wanted = wanted.into_iter().flatten();
        // The removal of an empty one has the same meaning.
        let is_there = |name: &str, text: &Value| {
            let stored = has.and_then(|all| all.get(name));
            stored.map_or("", String::as_str) == text.as_str().unwrap_or_default()
        };
        let found = wanted.find(|(name, text)| !is_there(name, text))?;
        Some(format!("{kind} {}", found.0))
    };
    missing("annotations", "annotation", object.annotations.as_ref())
        .or_else(|| missing("labels", "label", object.labels.as_ref()))
}

/// A patch that gives a pod annotations, unless the pod has changed since it was observed.
pub(super) fn annotations(resource_version: &str, all: &[(&str, &str)]) -> Value {
    let annotations: BTreeMap<_, _> = all.iter().copied().collect();
    json!({"metadata": {
        "resourceVersion": resource_version,
        "annotations": annotations,
    }})
}

/// Preconditions: the object that was observed and, with a version, that it has not changed since.
pub(super) fn preconditions(uid: &str, resource_version: Option<&str>) -> Preconditions {
    Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: resource_version.map(str::to_owned),
    }
}
