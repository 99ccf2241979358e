//! Checks of a job that has settled, on the objects in the API server.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod as FullPod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::{Resource, ResourceExt};
use roundhouse_api::TrainingJob;
use roundhouse_contract::labels;
use roundhouse_operator::controller::resources::network_policy::{self, Peers};
use roundhouse_operator::controller::resources::service;
use roundhouse_operator::runtime::api::metadata::version;
use roundhouse_operator::watch::projection;
use roundhouse_planner::{
    Observed, ObservedGroup, PodGroup, Presence, Repair, gpu, plan, validate_with,
};

use crate::environment::Environment;
use crate::pod_groups::coscheduling;

/// A job and all objects of its namespace with the operator's label, also those of other owners.
pub(crate) struct ClusterState {
    pub(crate) job: TrainingJob,
    pub(crate) pods: Vec<FullPod>,
    services: Vec<Service>,
    policies: Vec<NetworkPolicy>,
    groups: Vec<DynamicObject>,
}

impl ClusterState {
    pub(crate) async fn of(env: &Environment, namespace: &str) -> kube::Result<Self> {
        let ours = format!("{}={}", labels::MANAGED_BY, labels::FIELD_MANAGER);
        let ours = ListParams::default().labels(&ours);
        let services: Api<Service> = Api::namespaced(env.client.clone(), namespace);
        let policies: Api<NetworkPolicy> = Api::namespaced(env.client.clone(), namespace);
        Ok(Self {
            job: env.jobs(namespace).get("digits").await?,
            pods: env.pods(namespace).list(&ours).await?.items,
            services: services.list(&ours).await?.items,
            policies: policies.list(&ours).await?.items,
            groups: coscheduling()
                .groups_in(env, namespace)
                .list(&ours)
                .await?
                .items,
        })
    }

    pub(crate) fn pods_per_replica(&self) -> u32 {
        self.job.spec.workers.pods_per_replica.unwrap_or(1)
    }

    /// Resource versions of the job and the pods.
    pub(crate) fn versions(&self) -> impl Iterator<Item = u64> {
        let job = self.job.resource_version();
        let pods = self.pods.iter().map(ResourceExt::resource_version);
        pods.chain([job]).map(|it| version(it.as_deref()))
    }

    /// Deletes the objects whose controller is not this job, as the garbage collector does.
    pub(crate) async fn collect_garbage(&self, env: &Environment, namespace: &str) {
        let is_orphan = |meta| projection::identity(meta).controller != self.job.uid();
        for pod in self.pods.iter().filter(|it| is_orphan(&it.metadata)) {
            delete(env.pods(namespace), pod).await;
        }
        for service in self.services.iter().filter(|it| is_orphan(&it.metadata)) {
            delete(Api::namespaced(env.client.clone(), namespace), service).await;
        }
        for policy in self.policies.iter().filter(|it| is_orphan(&it.metadata)) {
            delete(Api::namespaced(env.client.clone(), namespace), policy).await;
        }
        for group in self.groups.iter().filter(|it| is_orphan(&it.metadata)) {
            delete(coscheduling().groups_in(env, namespace), group).await;
        }
    }

    /// The PodGroup of the job, as the planner observes it.
    fn group(&self) -> ObservedGroup {
        let Some(group) = self.groups.first() else {
            return ObservedGroup::Missing;
        };
        if projection::identity(&group.metadata).controller != self.job.uid() {
            return ObservedGroup::Foreign;
        }
        let min_member = group.data["spec"]["minMember"].as_u64().unwrap_or_default();
        ObservedGroup::Ours {
            uid: group.uid().unwrap_or_default(),
            group: PodGroup {
                min_member: u32::try_from(min_member).unwrap(),
                queue: None,
                priority_class: None,
            },
            deleting: group.metadata.deletion_timestamp.is_some(),
        }
    }

    /// Why the job is not settled: an operator with this state would still act, or the number of
    /// objects is wrong.
    pub(crate) fn pending_work(&self, num_pods: usize, num_groups: usize) -> Vec<String> {
        let mut problems = Vec::new();
        let status = self.job.status.clone().unwrap_or_default();
        let presence = |controlled: bool, is_as_built: bool| match (controlled, is_as_built) {
            (true, true) => Presence::Ours,
            (true, false) => Presence::Drifted {
                version: 0,
                repair: Repair::Now,
            },
            (false, _) => Presence::Foreign,
        };
        let uid = self.job.uid();
        let is_ours = |meta| projection::identity(meta).controller == uid;
        let service = self
            .services
            .first()
            .map(|it| presence(is_ours(&it.metadata), service::is_as_built(it)));
        let policy = self.policies.first().map(|it| {
            presence(
                is_ours(&it.metadata),
                network_policy::is_as_built(it, &Peers::default()),
            )
        });
        let observed = Observed {
            status: status.clone(),
            resource_version: self.job.resource_version().unwrap_or_default(),
            service: service.unwrap_or_default(),
            network_policy: policy.unwrap_or_default(),
            group: self.group(),
            pods: self.pods.iter().map(projection::pod).collect(),
            fresh: true,
            ..Observed::default()
        };
        let plan = plan(
            &validate_with(&self.job, &gpu::Listed::default(), &[]).job,
            &observed,
            jiff::Timestamp::now(),
        );
        if !plan.actions.is_empty() {
            problems.push(format!("the plan is not empty: {:?}", plan.actions));
        }
        if plan.status != status {
            problems.push(format!("the status would become {:?}", plan.status));
        }
        let (services, policies) = (self.services.len(), self.policies.len());
        let groups = self.groups.len();
        if (self.pods.len(), services, policies, groups) != (num_pods, 1, 1, num_groups) {
            let names: Vec<_> = self.pods.iter().map(ResourceExt::name_any).collect();
            problems.push(format!("{names:?}, {services} Services, {policies} NetworkPolicies and {groups} PodGroups, not {num_pods} pods, one of each, and {num_groups} PodGroups"));
        }
        problems
    }

    /// Why the workers are not one process group.
    pub(crate) fn group_problems(&self, nodes: u32) -> Vec<String> {
        let membership = self.job.status.clone().unwrap_or_default().membership;
        let Some(membership) = membership else {
            return vec!["the job has no generation".to_owned()];
        };
        let places: Vec<_> = self
            .pods
            .iter()
            .filter_map(|pod| projection::pod(pod).membership)
            .collect();
        let ranks: BTreeSet<_> = places.iter().map(|place| place.node_rank).collect();
        let groups: BTreeSet<_> = places
            .iter()
            .map(|place| (place.generation, &place.members))
            .collect();
        let is_one = groups
            .into_iter()
            .eq([(membership.generation, &membership.members)]);
        // Each pod of a replica has a node rank of its own.
        let num_pods = nodes * self.pods_per_replica();
        if is_one && ranks.into_iter().eq(0..num_pods) && membership.nodes == nodes {
            return Vec::new();
        }
        vec![format!(
            "not one process group of {nodes} nodes: {membership:?}, {places:?}"
        )]
    }
}

async fn delete<K>(objects: Api<K>, object: &K)
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let parameters = DeleteParams::default().grace_period(0);
    let parameters = parameters.preconditions(Preconditions {
        uid: object.uid(),
        resource_version: None,
    });
    // Ignored: the object may be gone already, or replaced by another one of the same name.
    let _ = objects.delete(&object.name_any(), &parameters).await;
}
