//! The NetworkPolicy of workers that terminate after their job was deleted. The garbage collector
//! removes the job's own policy at once, while the pods still have their grace period, in which all
//! ranks save together. In a namespace that denies traffic by default they would lose each other;
//! in any other namespace strangers could reach them. So the operator creates a policy that these
//! pods own. Kubernetes deletes it with the last of them.

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

/// Most jobs for which the operator creates a policy at the same time. The workers of further jobs
/// save without one.
pub(crate) const AT_ONCE: usize = 1_024;
/// Most of those jobs in one namespace: its users can make each of them take long.
const OF_ONE_NAMESPACE: usize = 64;
/// Pause between two looks at the pods of a job.
const PAUSE: Duration = Duration::from_millis(50);
/// Number of looks at the pods of a job, in total five seconds: the pods come from another watch,
/// which may be late.
const LOOKS: u32 = 100;
/// Text of the warnings. Each worker can also save alone.
const WITHOUT: &str = "workers terminate without a NetworkPolicy";
/// Most pods that own a policy. All terminate at about the same time, so a few suffice.
const MAX_OWNERS: usize = 64;

/// Passes on a job whose NetworkPolicy was deleted.
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
        // Too many jobs at a time: see `AT_ONCE`.
        if let Err(error) = deleted.try_send(job) {
            tracing::warn!(%error, job = %entry.job_name, %namespace, "{WITHOUT}");
        }
    }
}

/// Creates a policy for the terminating workers of each job that lost its own, until the operator
/// stops.
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
            tracing::warn!(job = %job.name, namespace = %job.namespace, "{WITHOUT}: too many jobs were deleted");
            return;
        };
        protect_one(&client, &caches, &scrapers, job).await;
    })
    .await;
}

/// The number of jobs in progress, by namespace.
#[derive(Debug, Default)]
struct Places(Mutex<HashMap<String, usize>>);

impl Places {
    /// Takes a place of a namespace, unless the namespace has all that it may have.
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

/// A taken place, which is given back on drop.
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
            // The job exists, and has a new policy.
            return;
        }
        let pods = caches.pods.of(&key);
        match next(pods.values().map(|entry| &entry.value), before) {
            Next::Nothing => return,
            Next::Wait { leaving } => before = leaving,
            Next::Create(owners) => {
                let policy = network_policy::build_leaving(&job, scrapers, &owners);
                return create(client, &job, &policy).await;
            }
        }
        sleep(PAUSE).await;
    }
    tracing::warn!(job = %job.name, namespace = %job.namespace, "{WITHOUT}: not all are known to terminate");
}

async fn create(client: &Client, job: &JobIdentity, policy: &NetworkPolicy) {
    let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), &job.namespace);
    let parameters = post_params();
    match call(|| policies.create(&parameters, policy)).await {
        Ok(_) => {
            tracing::info!(job = %job.name, namespace = %job.namespace, "terminating workers have a NetworkPolicy of their own");
        }
        // An earlier try has created it.
        Err(error) if error.code() == Some(409) => {}
        // For example in a namespace that is being deleted.
        Err(error) => {
            tracing::warn!(%error, job = %job.name, namespace = %job.namespace, "{WITHOUT}");
        }
    }
}

/// What to do about the pods of a job without a policy.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    /// It is not known yet which workers terminate.
    Wait {
        /// Number of workers that are known to terminate.
        leaving: usize,
    },
    /// These pods terminate: names and UIDs.
    Create(Vec<(String, String)>),
}

/// `before`: number of terminating workers at the last look.
fn next<'a>(pods: impl Iterator<Item = &'a Pod>, before: usize) -> Next {
    let runs = |pod: &&Pod| matches!(pod.phase, PodPhase::Pending | PodPhase::Running);
    // A pod on a node that does not answer may stay indefinitely.
    let pods = pods.filter(|pod| pod.ours && !pod.unreachable).filter(runs);
    let (mut leaving, staying): (Vec<&Pod>, Vec<&Pod>) = pods.partition(|pod| pod.deleting);
    match (leaving.len(), staying.is_empty()) {
        (0, true) => Next::Nothing,
        // A pod that owned a policy before its deletion could be deleted in the foreground, after
        // its policy.
        (0, false) => Next::Wait { leaving: 0 },
        (now, false) if now != before => Next::Wait { leaving: now },
        _ => {
            // Rank 0 leaves last: it completes the checkpoint.
            leaving.sort_by_key(|pod| {
                let rank = pod.membership.as_ref().map(|place| place.node_rank);
                (rank.is_none(), rank)
            });
            leaving.truncate(MAX_OWNERS);
            let owners = leaving.into_iter();
            Next::Create(
                owners
                    .map(|pod| (pod.name.clone(), pod.uid.clone()))
                    .collect(),
            )
        }
    }
}

#[cfg(test)]
mod tests;
