//! One action of a plan as a write. A write is counted, and continues beside the reconcile if it
//! takes long.
//!
//! Children are created, not applied: server-side apply would merge our fields and our owner
//! reference into another owner's object of the same name. An object that is known to be ours is
//! repaired by server-side apply, at the version that was observed.

use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::Preconditions;
use roundhouse_api::Gang;
use roundhouse_contract::BuiltFrom;
use roundhouse_planner::{Action, ValidatedJob};
use serde_json::Value;

use super::Applier;
use super::groups;
use super::patches;
use super::writes::{ObjectWriter, preconditions};
use crate::controller::error::Error;
use crate::controller::resources::worker::grouped::GroupedPod;
use crate::controller::resources::{network_policy, service, worker};
use crate::controller::slow_writes::{Answer, Write};
use crate::job::{JobKey, JobName};
use crate::memory::expectations::Written;
use crate::runtime::api::error::CallError;
use crate::runtime::api::object::NamespacedObject;

pub(super) const fn name(action: &Action) -> &'static str {
    match action {
        Action::CreateService => "CreateService",
        Action::CreateNetworkPolicy => "CreateNetworkPolicy",
        Action::RepairService { .. } => "RepairService",
        Action::RepairNetworkPolicy { .. } => "RepairNetworkPolicy",
        Action::ApplyPodGroup { .. } => "ApplyPodGroup",
        Action::DeletePodGroup { .. } => "DeletePodGroup",
        Action::CreateWorker { .. } => "CreateWorker",
        Action::IssueMembership { .. } => "IssueMembership",
        Action::PlaceInReplica { .. } => "PlaceInReplica",
        Action::PairCopies { .. } => "PairCopies",
        Action::EndGroup { .. } => "EndGroup",
        Action::LeaveDomain { .. } => "LeaveDomain",
        Action::LabelReplica { .. } => "LabelReplica",
        Action::DeletePod { .. } => "DeletePod",
        Action::DeleteJob { .. } => "DeleteJob",
    }
}

pub(super) const fn is_creation(action: &Action) -> bool {
    match action {
        Action::CreateService
        | Action::CreateNetworkPolicy
        | Action::RepairService { .. }
        | Action::RepairNetworkPolicy { .. }
        | Action::ApplyPodGroup { .. }
        | Action::CreateWorker { .. } => true,
        Action::IssueMembership { .. }
        | Action::PlaceInReplica { .. }
        | Action::PairCopies { .. }
        | Action::EndGroup { .. }
        | Action::LeaveDomain { .. }
        | Action::LabelReplica { .. }
        | Action::DeletePod { .. }
        | Action::DeletePodGroup { .. }
        | Action::DeleteJob { .. } => false,
    }
}

/// An action of a job's plan, and what carries it out.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) applier: &'a Applier,
    pub(super) key: &'a JobKey,
    pub(super) job: &'a ValidatedJob,
    pub(super) action: &'a Action,
}

impl Step<'_> {
    pub(super) async fn run(self) -> Result<(), Error> {
        let job = &self.job.identity;
        let scrapers = &self.applier.settings.worker_metrics_from;
        let answer = match self.action {
            Action::CreateService => {
                let object: Service = service::build(job);
                self.create(object, Written::Service).await
            }
            Action::CreateNetworkPolicy => {
                let object: NetworkPolicy = network_policy::build(job, scrapers);
                self.create(object, Written::NetworkPolicy).await
            }
            Action::RepairService { version } => {
                let object: Service = service::build(job);
                self.repair(object, Written::Service, *version).await
            }
            Action::RepairNetworkPolicy { version } => {
                let object: NetworkPolicy = network_policy::build(job, scrapers);
                self.repair(object, Written::NetworkPolicy, *version).await
            }
            Action::ApplyPodGroup {
                gang,
                number,
                group,
                uid,
            } => groups::keep(self, (*gang, *number), group, uid.as_deref()).await,
            Action::DeletePodGroup { gang, number, uid } => {
                groups::remove(self, *gang, *number, uid).await
            }
            Action::CreateWorker {
                index,
                attempt,
                replica,
                gang,
                avoid,
                lost,
                built_like,
            } => {
                let (attempt, place) = ((*index, *attempt), (*replica, *gang));
                let pod = self.worker(attempt, place, avoid, lost, built_like.as_ref());
                self.create_pod(pod.await?, *gang).await
            }
            Action::IssueMembership { .. }
            | Action::PlaceInReplica { .. }
            | Action::PairCopies { .. }
            | Action::EndGroup { .. }
            | Action::LeaveDomain { .. }
            | Action::LabelReplica { .. } => match patches::of(self.action)? {
                Some((pod, version, patch)) => self.patch_metadata(pod, version, patch).await,
                None => Ok(()),
            },
            Action::DeletePod {
                pod,
                uid,
                resource_version,
                reason,
            } => {
                tracing::info!(job = %job.name, pod, ?reason, "deleting a pod");
                let observed = preconditions(uid, resource_version.as_deref());
                self.delete::<Pod>(pod, observed, Written::Pod(pod.clone()))
                    .await
            }
            Action::DeleteJob {
                uid,
                resource_version,
            } => {
                let name = &job.name;
                tracing::info!(job = %name, "deleting the job: its ttlSecondsAfterFinished has passed");
                self.delete_job(name, uid, resource_version).await
            }
        };
        answer.map_err(|source| Error::Apply {
            action: name(self.action),
            is_creation: is_creation(self.action),
            source,
        })
    }

    /// Builds the pod of a worker's attempt.
    async fn worker(
        self,
        (index, attempt): (u32, u32),
        (replica, gang): (Option<u32>, u32),
        avoid: &[String],
        lost: &[String],
        built_like: Option<&BuiltFrom>,
    ) -> Result<Pod, Error> {
        let settings = &self.applier.settings;
        let avoid = self.applier.topology.references(avoid).await;
        let lost = self.applier.topology.references(lost).await;
        let place = worker::Place {
            index,
            attempt,
            replica,
            gang,
            avoid: &avoid,
            lost: &lost,
            trainer_image: built_like
                .map_or(&settings.trainer_image, |record| &record.trainer_image),
            pull_policy: &settings.trainer_pull_policy,
            architecture: built_like
                .and_then(|record| record.trainer_architecture.as_ref())
                .unwrap_or(&settings.trainer_architecture),
            fixed_users: built_like
                .and_then(|record| record.fixed_users)
                .unwrap_or(settings.fixed_users),
        };
        Ok(worker::build(self.job, place)?)
    }

    async fn create_pod(self, pod: Pod, gang: u32) -> Answer {
        let written = Written::Pod(pod.name_any());
        match self.job.scheduling.gang {
            Gang::Kubernetes => {
                let pod = GroupedPod::of(&self.job.identity, gang, pod);
                self.create(pod, written).await
            }
            Gang::None | Gang::Coscheduling | Gang::Volcano => self.create(pod, written).await,
        }
    }

    pub(super) async fn create<K: NamespacedObject>(self, object: K, written: Written) -> Answer {
        let write = self.write(true, written.clone(), 0);
        let creation = |writer: ObjectWriter, key: JobKey, deadline| async move {
            writer.create(&key, &object, written, deadline).await
        };
        self.call(write, creation).await
    }

    /// Changes or deletes an object. `content_version`: see [`Write::content_version`].
    pub(super) async fn change<F>(
        self,
        object: Written,
        content_version: u64,
        call: impl FnOnce(ObjectWriter, JobKey, Duration) -> F,
    ) -> Answer
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        self.call(self.write(false, object, content_version), call)
            .await
    }

    pub(super) async fn delete<K: NamespacedObject>(
        self,
        name: &str,
        observed: Preconditions,
        written: Written,
    ) -> Answer {
        let (name, object) = (name.to_owned(), written.clone());
        let deletion = |writer: ObjectWriter, key: JobKey, deadline| async move {
            let which = (&*name, observed);
            writer.delete::<K>(&key, which, written, deadline).await
        };
        self.change(object, 0, deletion).await
    }

    async fn delete_job(self, name: &str, uid: &str, resource_version: &str) -> Answer {
        let [name, uid, version] = [name, uid, resource_version].map(str::to_owned);
        let which = (name, uid, version);
        let deletion = |writer: ObjectWriter, key: JobKey, deadline| async move {
            writer.delete_job(&key, which, deadline).await
        };
        self.change(Written::Status, 0, deletion).await
    }

    /// Repairs the drift of an object of ours.
    async fn repair<K: NamespacedObject>(
        self,
        object: K,
        written: Written,
        version: u64,
    ) -> Answer {
        let (action, what) = (name(self.action), written.clone());
        let call = move |writer: ObjectWriter, key: JobKey, deadline| async move {
            let which = (written, version);
            writer.repair(&key, action, object, which, deadline).await
        };
        self.change(what, version, call).await
    }

    /// Gives a pod annotations or labels.
    async fn patch_metadata(self, pod: &str, content_version: u64, patch: Value) -> Answer {
        let pod = pod.to_owned();
        let what = Written::Pod(pod.clone());
        let call = |writer: ObjectWriter, key: JobKey, deadline| async move {
            writer.patch_metadata(&key, &pod, &patch, deadline).await
        };
        self.change(what, content_version, call).await
    }

    fn write(self, creates: bool, object: Written, content_version: u64) -> Write {
        Write {
            job: self.key.clone(),
            action: name(self.action),
            creates,
            object,
            content_version,
        }
    }

    async fn call<F>(
        self,
        write: Write,
        call: impl FnOnce(ObjectWriter, JobKey, Duration) -> F,
    ) -> Result<(), CallError>
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let wake = JobName::new(&self.key.namespace, &self.job.identity.name);
        let Applier {
            writer,
            slow_writes,
            work,
            ..
        } = self.applier;
        let counted = |deadline| {
            let (action, work) = (write.action, work.clone());
            let call = call(writer.clone(), self.key.clone(), deadline);
            async move {
                call.await?;
                work.acted(action);
                Ok(())
            }
            .boxed()
        };
        slow_writes.run(write.clone(), wake, counted).await
    }
}
