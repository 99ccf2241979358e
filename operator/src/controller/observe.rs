//! Step 1, pure over the caches: everything that is known of one job. There is no I/O in between,
//! so that all of it is from one moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use roundhouse_api::{Gang, TrainingJob};
use roundhouse_contract::names;
use roundhouse_planner::{GroupWrites, Observed, ObservedGroup, OtherGroup, Pod, Presence, Repair};

use crate::job::JobKey;
use crate::memory::expectations::{Lag, Seen, Written};
use crate::memory::repairs::{Drift, Repairs};
use crate::memory::workers::Workers;
use crate::memory::{JobMemories, JobMemory};
use crate::runtime::api::metadata::version;
use crate::watch::cache::{Entry, OfJob};
use crate::watch::caches::Caches;
use crate::watch::lost_nodes::NodeTiming;
use crate::watch::projection::OwnedObject;
use crate::watch::topology::Topology;

/// Reads the caches and the memory of a job.
pub struct Observer {
    pub(super) caches: Arc<Caches>,
    pub(super) memories: Arc<JobMemories>,
    pub(super) topology: Topology,
    /// When the node of a pod counts as lost.
    pub(super) lost_nodes: NodeTiming,
    /// How long the operator waits for a worker whose node is lost.
    pub(super) lost_node_grace: Duration,
}

impl Observer {
    /// What the caches lack of the operator's own writes; `None` if they show everything.
    #[must_use]
    pub(crate) fn lag(&self, key: &JobKey, job: &TrainingJob) -> Option<Lag> {
        let caches = &self.caches;
        let pods = caches.pods.of(key);
        let services = caches.services.of(key);
        let policies = caches.network_policies.of(key);
        let job_name = job.metadata.name.as_deref().unwrap_or_default();
        let name = names::service(job_name);
        let gang = job.spec.scheduling.gang;
        let group = |number| {
            let name = names::pod_group(job_name, number);
            caches.groups.kept(gang, key, &name)
        };
        let namespace = &key.namespace;
        let shows = |written: &Written| match written {
            Written::Status => Seen::Version(version(job.metadata.resource_version.as_deref())),
            Written::Pod(pod) => seen(pods.get(pod), || caches.pods.deleted_at(namespace, pod)),
            Written::Service => seen(services.get(&name), || {
                caches.services.deleted_at(namespace, &name)
            }),
            Written::NetworkPolicy => seen(policies.get(&name), || {
                caches.network_policies.deleted_at(namespace, &name)
            }),
            Written::PodGroup(number) => seen(group(*number).as_ref(), || None),
        };
        self.memories
            .with(key, |memory| memory.expectations.wait(shows))
    }

    /// Everything that is known of one job. `None`: it is not known yet whether its gang scheduler
    /// is installed. `since`: since when this operator has reconciled jobs.
    #[must_use]
    pub fn observe(
        &self,
        key: &JobKey,
        job: &TrainingJob,
        since: Option<Timestamp>,
    ) -> Option<Observed> {
        let caches = &self.caches;
        let job_name = job.metadata.name.as_deref().unwrap_or_default();
        let name = names::service(job_name);
        let gang = job.spec.scheduling.gang;
        let mut groups = caches.groups.observe(gang, key, job_name)?;
        let (services, policies) = (caches.services.of(key), caches.network_policies.of(key));
        let pods = caches.pods.of(key);
        let pods = pods.values().map(|entry| entry.value.clone());
        let pods: Vec<Pod> = pods.map(|pod| self.on_its_node(pod, job)).collect();
        let progress_interval = self.memories.progress_interval();
        let remembered = |memory: &mut JobMemory| {
            let repairs = &memory.repairs;
            Observed {
                group: groups.remove(&0).unwrap_or_default(),
                group_writes: match gang {
                    Gang::None => GroupWrites::default(),
                    Gang::Coscheduling | Gang::Volcano | Gang::Kubernetes => repairs.of_group(0),
                },
                other_groups: other_groups(groups, repairs),
                status: job.status.clone().unwrap_or_default(),
                resource_version: job.metadata.resource_version.clone().unwrap_or_default(),
                service: presence(&services, &name, key, |drift| {
                    repairs.next(Written::Service, drift)
                }),
                network_policy: presence(&policies, &name, key, |drift| {
                    repairs.next(Written::NetworkPolicy, drift)
                }),
                pods: pods
                    .into_iter()
                    .map(|pod| with_its_agent(pod, &memory.workers))
                    .collect(),
                taken: memory.taken_names.current(),
                progress: memory.progress.last(),
                formed: memory.progress.formed(),
                progress_interval: Some(progress_interval),
                lost_node_grace: Some(self.lost_node_grace),
                fresh: false,
                clock_off: false,
                // The caches do not have it; the driver draws it.
                nonce: String::new(),
                watched_since: since,
            }
        };
        Some(self.memories.with(key, remembered))
    }

    /// Adds to a pod what only its node shows.
    fn on_its_node(&self, pod: Pod, job: &TrainingJob) -> Pod {
        let Some(node) = &pod.node else {
            return pod;
        };
        let key = job.spec.scheduling.topology_key.as_ref();
        let lost = self.caches.lost_nodes.of(&pod, self.lost_nodes);
        Pod {
            unreachable: pod.unreachable || lost.is_some(),
            node_answers: lost.is_some_and(|lost| lost.answers),
            ready_at: lost.map(|lost| lost.since).or(pod.ready_at),
            cordoned: self.caches.cordoned.contains(node),
            domain: key.and_then(|key| self.topology.domain(node, key)),
            ..pod
        }
    }
}

/// The PodGroups of the gangs after the first one: those that exist, and those that were written.
fn other_groups(
    mut observed: BTreeMap<u32, ObservedGroup>,
    repairs: &Repairs,
) -> BTreeMap<u32, OtherGroup> {
    for gang in repairs.gangs().filter(|gang| *gang > 0) {
        observed.entry(gang).or_default();
    }
    let with_writes = |(gang, observed)| {
        let writes = repairs.of_group(gang);
        (gang, OtherGroup { observed, writes })
    };
    observed.into_iter().map(with_writes).collect()
}

/// Adds to a pod what only its agent reports. A worker whose agent is silent is left out like a
/// worker whose node does not answer.
fn with_its_agent(pod: Pod, workers: &Workers) -> Pod {
    let silent_since = workers.silent_since(&pod);
    let silent_since = silent_since.filter(|_| !pod.unreachable);
    let agent_silent = silent_since.is_some();
    Pod {
        processes: workers.processes(&pod),
        unreachable: pod.unreachable || agent_silent,
        node_answers: pod.node_answers || agent_silent,
        agent_silent,
        // The grace period begins now, even if the pod has not been Ready for longer.
        ready_at: pod.ready_at.max(silent_since),
        ..pod
    }
}

fn presence(
    objects: &OfJob<OwnedObject>,
    name: &str,
    job: &JobKey,
    repair: impl FnOnce(Drift) -> Repair,
) -> Presence {
    let Some(entry) = objects.get(name) else {
        return match repair(Drift::Deleted) {
            Repair::Now => Presence::Missing,
            repair => Presence::Deleted { repair },
        };
    };
    let Entry { value, version, .. } = entry.as_ref();
    let is_ours = value.controller.as_ref() == Some(&job.uid);
    match (is_ours, value.is_as_built) {
        (false, _) => Presence::Foreign,
        (true, true) => Presence::Ours,
        (true, false) => Presence::Drifted {
            version: *version,
            repair: repair(Drift::Modified),
        },
    }
}

/// What a cache shows of an object. The cache does not keep an object that was created and deleted
/// at once, but it has seen both.
fn seen<T>(entry: Option<&Arc<Entry<T>>>, deleted_at: impl FnOnce() -> Option<u64>) -> Seen {
    match entry {
        Some(entry) => Seen::Version(entry.version),
        None => deleted_at().map_or(Seen::Absent, Seen::Gone),
    }
}
