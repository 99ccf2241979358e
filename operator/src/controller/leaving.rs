//! The NetworkPolicy of workers that leave after their job. Garbage collection removes the job's own policy at once, while its pods
//! have their grace period, in which all ranks save together. In a namespace that denies traffic by default they would lose
//! each other, and in any other one strangers would reach them. So the operator makes a policy that these pods own: Kubernetes
//! deletes it with the last of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use roundhouse_planner::{JobIdentity, Pod, PodPhase};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;

use crate::controller::resources::network_policy::{self, Peers};
use crate::job::JobKey;
use crate::runtime::api::calls::{call, post_params};
use crate::runtime::leader_election::Leadership;
use crate::watch::caches::Caches;
use crate::watch::projection::OwnedObject;
use crate::watch::streams::Named;

/// Jobs of which a policy may be made at a time. More of them save without one.
pub(crate) const AT_ONCE: usize = 1_024;
/// Those of one namespace: its users can make each take as long as it may.
const OF_ONE_NAMESPACE: usize = 64;
/// Between two looks at the pods of a job.
const PAUSE: Duration = Duration::from_millis(50);
/// Looks at the pods of a job, for five seconds: they come by another watch, which may be late.
const LOOKS: u32 = 100;
/// What a warning says. Each worker can save alone.
const WITHOUT: &str = "workers leave without a NetworkPolicy";
/// Most pods that own a policy. All leave at about the same time, so a few suffice.
const MAX_OWNERS: usize = 64;

/// Tells of a job whose NetworkPolicy was deleted.
pub(crate) fn note(event: &Event<Named<OwnedObject>>, deleted: &Sender<JobIdentity>) {
    let Event::Delete((namespace, _, entry)) = event else {
        return;
    };
    if entry.value.controller.as_ref() == Some(&entry.job_uid) {
        let job = JobIdentity {
            namespace: namespace.clone(),
            name: entry.job_name.clone(),
            uid: entry.job_uid.clone(),
        };
        // Too many at a time: see `AT_ONCE`.
        if let Err(error) = deleted.try_send(job) {
            tracing::warn!(%error, job = %entry.job_name, %namespace, "{WITHOUT}");
        }
    }
}

/// Makes a policy for the workers of each job that lost its own, if they leave, until the operator stops.
pub(crate) async fn protect(
    client: Client,
    caches: Arc<Caches>,
    scrapers: Peers,
    leadership: Arc<Leadership>,
    deleted: Receiver<JobIdentity>,
) {
    let places = Places::default();
    let jobs = ReceiverStream::new(deleted).filter(|_| std::future::ready(leadership.may_write()));
    jobs.for_each_concurrent(AT_ONCE, async |job| {
        let Some(_place) = places.take(&job.namespace) else {
            tracing::warn!(job = %job.name, namespace = %job.namespace, "{WITHOUT}: too many jobs leave");
            return;
        };
        protect_one(&client, &caches, &scrapers, job).await;
    })
    .await;
}

/// How many jobs of each namespace are looked after.
#[derive(Debug, Default)]
struct Places(Mutex<HashMap<String, usize>>);

impl Places {
    /// One of a namespace's, unless it has as many as it may have.
    fn take(&self, namespace: &str) -> Option<Place<'_>> {
        let mut taken = self.lock();
        let number = taken.entry(namespace.to_owned()).or_default();
        (*number < OF_ONE_NAMESPACE).then(|| {
            *number += 1;
            Place {
                places: self,
                namespace: namespace.to_owned(),
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// It is given back when it is dropped.
#[derive(Debug)]
struct Place<'a> {
    places: &'a Places,
    namespace: String,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        if let Entry::Occupied(mut number) = taken.entry(std::mem::take(&mut self.namespace)) {
            *number.get_mut() -= 1;
            if *number.get() == 0 {
                number.remove();
            }
        }
    }
}

async fn protect_one(client: &Client, caches: &Caches, scrapers: &Peers, job: JobIdentity) {
    let key = JobKey::new(&job.namespace, &job.uid);
    let mut before = 0;
    for _ in 0..LOOKS {
        let policies = caches.network_policies.of(&key);
        let controls = |policy: &OwnedObject| policy.controller.as_ref() == Some(&job.uid);
        if policies.values().any(|entry| controls(&entry.value)) {
            // The job is there and has been given another one.
            return;
        }
        let pods = caches.pods.of(&key);
        match next(pods.values().map(|entry| &entry.value), before) {
            Next::Nothing => return,
            Next::Look { leaving } => before = leaving,
            Next::Make(owners) => {
                let policy = network_policy::build_leaving(&job, scrapers, &owners);
                return create(client, &job, &policy).await;
            }
        }
        sleep(PAUSE).await;
    }
    tracing::warn!(job = %job.name, namespace = %job.namespace, "{WITHOUT}: not all are known to leave");
}

async fn create(client: &Client, job: &JobIdentity, policy: &NetworkPolicy) {
    let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), &job.namespace);
    let parameters = post_params();
    match call(|| policies.create(&parameters, policy)).await {
        Ok(_) => {
            tracing::info!(job = %job.name, namespace = %job.namespace, "workers that leave have a NetworkPolicy of their own");
        }
        // An earlier try has arrived.
        Err(error) if error.code() == Some(409) => {}
        // As in a namespace that is deleted.
        Err(error) => {
            tracing::warn!(%error, job = %job.name, namespace = %job.namespace, "{WITHOUT}");
        }
    }
}

/// What to do for the pods of a job without a policy.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// No worker runs.
    Nothing,
    /// It is not known yet who leaves.
    Look {
        /// Number of workers that are known to.
        leaving: usize,
    },
    /// These leave: names and UIDs.
    Make(Vec<(String, String)>),
}

/// `before`: how many were known to leave at the last look.
fn next<'a>(pods: impl Iterator<Item = &'a Pod>, before: usize) -> Next {
    let runs = |pod: &&Pod| matches!(pod.phase, PodPhase::Pending | PodPhase::Running);
    // A pod on a node that does not answer may stay for ever.
    let pods = pods.filter(|pod| pod.ours && !pod.unreachable).filter(runs);
    let (mut leaving, staying): (Vec<&Pod>, Vec<&Pod>) = pods.partition(|pod| pod.deleting);
    match (leaving.len(), staying.is_empty()) {
        (0, true) => Next::Nothing,
        // A pod that owns something before it is deleted may be deleted in the foreground, and what it owns before it.
        (0, false) => Next::Look { leaving: 0 },
        (now, false) if now != before => Next::Look { leaving: now },
        _ => {
            // Rank 0 leaves last: it names the checkpoint.
            leaving.sort_by_key(|pod| {
                let rank = pod.membership.as_ref().map(|place| place.node_rank);
                (rank.is_none(), rank)
            });
            leaving.truncate(MAX_OWNERS);
            let owners = leaving.into_iter();
            Next::Make(
                owners
                    .map(|pod| (pod.name.clone(), pod.uid.clone()))
                    .collect(),
            )
        }
    }
}

#[cfg(test)]
mod tests;
