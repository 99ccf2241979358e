//! Step 1, pure over the caches: what there is of one job. No I/O in between, so that all of it is
//! of one moment.

use std::sync::Arc;

use roundhouse_api::{Gang, TrainingJob};
use roundhouse_contract::names;
use roundhouse_planner::{GroupWrites, Observed, Pod, Presence, Repair};

use crate::controller::context::Context;
use crate::job::JobKey;
use crate::memory::expectations::{Lag, Seen, Written};
use crate::memory::repairs::Drift;
use crate::watch::cache::{Entry, OfJob};
use crate::watch::projection::OwnedObject;

/// Why to wait until the caches have seen what was written; `None` if they have.
#[must_use]
pub fn lag(context: &Context, key: &JobKey, job: &TrainingJob) -> Option<Lag> {
    let pods = context.pods.of(key);
    let services = context.services.of(key);
    let policies = context.network_policies.of(key);
    let job_name = job.metadata.name.as_deref().unwrap_or_default();
    let name = names::service(job_name);
    let gang = job.spec.scheduling.gang;
    let group = || context.groups.kept(gang, key, &names::pod_group(job_name));
    let namespace = &key.namespace;
    context.expectations.wait(key, |written| match written {
        Written::Status => Seen::Version(version(job.metadata.resource_version.as_deref())),
        Written::Pod(pod) => seen(pods.get(pod), || context.pods.deleted_at(namespace, pod)),
        Written::Service => seen(services.get(&name), || {
            context.services.deleted_at(namespace, &name)
        }),
        Written::NetworkPolicy => seen(policies.get(&name), || {
            context.network_policies.deleted_at(namespace, &name)
        }),
        Written::PodGroup => seen(group().as_ref(), || None),
    })
}

/// Everything of one job. `None`: it is not known yet whether its gang scheduler is installed.
#[must_use]
pub fn observe(context: &Context, key: &JobKey, job: &TrainingJob) -> Option<Observed> {
    let job_name = job.metadata.name.as_deref().unwrap_or_default();
    let name = names::service(job_name);
    let gang = job.spec.scheduling.gang;
    let group = context
        .groups
        .observe(gang, key, &names::pod_group(job_name))?;
    Some(Observed {
        group,
        group_writes: match gang {
            Gang::None => GroupWrites::default(),
            Gang::Coscheduling | Gang::Volcano | Gang::Kubernetes => context.repairs.of_group(key),
        },
        status: job.status.clone().unwrap_or_default(),
        resource_version: job.metadata.resource_version.clone().unwrap_or_default(),
        service: presence(&context.services.of(key), &name, key, |drift| {
            context.repairs.next(key, Written::Service, drift)
        }),
        network_policy: presence(&context.network_policies.of(key), &name, key, |drift| {
            context.repairs.next(key, Written::NetworkPolicy, drift)
        }),
        pods: context
            .pods
            .of(key)
            .values()
            .map(|entry| on_its_node(entry.value.clone(), context, job))
            .map(|pod| with_its_agent(pod, context, key))
            .collect(),
        taken: context.taken_names.of(key),
        progress: context.progress.of(key),
        formed: context.progress.formed(key),
        progress_interval: Some(context.progress.interval()),
        lost_node_grace: Some(context.settings.lost_node_grace()),
        fresh: false,
        clock_off: false,
        // The caches do not know; the driver draws it.
        nonce: String::new(),
        watched_since: context.looks_after_jobs_since(),
    })
}

/// A pod with what only its agent reports. A worker whose agent is silent is left out as one is whose node does not answer.
fn with_its_agent(pod: Pod, context: &Context, key: &JobKey) -> Pod {
    let silent_since = context.restarts.silent_since(key, &pod);
    let silent_since = silent_since.filter(|_| !pod.unreachable);
    let agent_silent = silent_since.is_some();
    Pod {
        processes: context.restarts.of(key, &pod),
        unreachable: pod.unreachable || agent_silent,
        node_answers: pod.node_answers || agent_silent,
        agent_silent,
        // The grace begins now, however long it has not been Ready.
        ready_at: pod.ready_at.max(silent_since),
        ..pod
    }
}

/// A pod with what only its node tells.
fn on_its_node(pod: Pod, context: &Context, job: &TrainingJob) -> Pod {
    let Some(node) = &pod.node else {
        return pod;
    };
    let key = job.spec.scheduling.topology_key.as_ref();
    let lost = context.lost_nodes.of(&pod, context.settings.lost_nodes);
    Pod {
        unreachable: pod.unreachable || lost.is_some(),
        node_answers: lost.is_some_and(|lost| lost.answers),
        ready_at: lost.map(|lost| lost.since).or(pod.ready_at),
        cordoned: context.cordoned.contains(node),
        domain: key.and_then(|key| context.topology.domain(node, key)),
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

/// What is written and deleted at once is never kept: the cache has seen both.
fn seen<T>(entry: Option<&Arc<Entry<T>>>, deleted_at: impl FnOnce() -> Option<u64>) -> Seen {
    match entry {
        Some(entry) => Seen::Version(entry.version),
        None => deleted_at().map_or(Seen::Absent, Seen::Gone),
    }
}

/// A resourceVersion as a number: since Kubernetes 1.35 they are promised to be comparable so.
#[must_use]
pub fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}
