//! Replicas of several pods (`workers.podsPerReplica`).
//!
//! All policies for workers apply to replicas: [`combine`] turns the pods of a replica into one pod
//! with the processes of all, and [`expand`](Replicas::expand) turns the actions for it into those
//! for its pods. So a generation has whole replicas only. What concerns pods themselves (creation,
//! replacement, nodes) stays with the pods: [`assign`] gives each its place in a replica, and
//! [`lives`] says when the processes of a replica start together.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use roundhouse_contract::{Action, Incarnation, Membership};

use crate::observed::{Observed, Pod};
use crate::plan::DeleteReason;
use crate::validate::ValidatedJob;

mod assign;
mod combine;
mod copy_holders;
mod domains;
mod expand;
mod fill;
mod former;
pub(crate) mod lives;
mod merge;
mod reunite;
mod whole;

pub(crate) use combine::pods_in;

/// The pods of a job whose replicas have several, by their roles.
#[derive(Debug)]
pub(crate) struct Replicas<'a> {
    /// Replicas by index. A replica may lack pods.
    pub(crate) all: BTreeMap<u32, Replica<'a>>,
    /// Replicas of which pods are terminating, as they were when their processes started.
    pub(crate) leaving: Vec<Replica<'a>>,
    /// Lives that may still train although they are no replica's any more: no agent has reported
    /// their end, and no later life of their pods is Ready.
    pub(crate) former: Vec<Replica<'a>>,
    /// Pods that wait for a place in a replica.
    pub(crate) spares: Vec<&'a Pod>,
    /// How many of these can take a place now.
    pub(crate) num_fit_spares: usize,
    /// Pods to delete: beyond the wanted number, beside a later attempt, or fitting no replica.
    pub(crate) surplus: Vec<(&'a Pod, DeleteReason)>,
    /// For each missing pod of a wanted replica the index of the replica, in order.
    pub(crate) holes: Vec<u32>,
    /// When a running pod that still waits for the others of its replica may complete another one.
    pub(crate) patience_left: Option<Duration>,
    /// Pods by their own index, of each the highest attempt that is not terminating.
    pub(crate) pods: BTreeMap<u32, &'a Pod>,
    /// Pods that must not train any more because of a fault of their node, by UID.
    pub(crate) condemned: BTreeSet<&'a str>,
    /// All other pods of the job: terminating ones without a place, and those without an index.
    others: Vec<&'a Pod>,
    /// Indices of the replicas of pods without a document of their place, by UID.
    index_of: HashMap<&'a str, u32>,
}

/// One replica and its pods.
#[derive(Clone, Debug)]
pub(crate) struct Replica<'a> {
    pub(crate) index: u32,
    /// Its pods by their place; `None` for a missing one.
    pub(crate) pods: Vec<Option<&'a Pod>>,
    /// The life that all of its pods have a document of, for the containers that run in them now.
    pub(crate) life: Option<&'a str>,
}

impl<'a> Replica<'a> {
    fn new(index: u32, pods: Vec<Option<&'a Pod>>) -> Self {
        let life = common_life(index, &pods);
        Self { index, pods, life }
    }

    /// Its pods, if none is missing.
    pub(crate) fn whole(&self) -> Option<Vec<&'a Pod>> {
        self.pods.iter().copied().collect()
    }

    /// The pods that it has.
    pub(crate) fn present(&self) -> impl Iterator<Item = &'a Pod> {
        self.pods.iter().copied().flatten()
    }

    /// Whether it has this pod, one of those observed. Plans call this for each pod, so it compares
    /// addresses: the UIDs are elsewhere in memory.
    pub(crate) fn has(&self, pod: &Pod) -> bool {
        self.present().any(|it| std::ptr::eq(it, pod))
    }

    /// Its incarnation in the life of its documents, while the container of this pod had this
    /// number of restarts.
    pub(crate) fn incarnation_with(&self, pod: &Pod, restarts: u32) -> Incarnation {
        let life = pod.replica.as_ref().map_or("", |place| &place.life);
        let of = |it: &Pod| {
            if it.uid == pod.uid {
                restarts
            } else {
                it.container.restarts
            }
        };
        Incarnation {
            pod_uid: combine::uid(self.present().map(|it| &*it.uid), life),
            restarts: combine::sum(self.present().map(of)),
        }
    }

    /// The life of its pods in their newest generation.
    fn life_in_generation(&self) -> Option<&'a str> {
        let first = self.present().next()?.membership.as_ref()?;
        Some(&first.life)
    }
}

fn common_life<'a>(index: u32, pods: &[Option<&'a Pod>]) -> Option<&'a str> {
    let mut found = None;
    for (place, pod) in (0_u32..).zip(pods) {
        let pod = (*pod)?;
        let document = pod.replica.as_ref()?;
        let is_current = document.replica == index
            && document.pod == place
            && document.addresses.len() == pods.len()
            && document.addresses.get(place as usize) == pod.ip.as_ref()
            && pod.is_incarnation(&document.incarnation);
        let life = &*document.life;
        if !is_current || *found.get_or_insert(life) != life {
            return None;
        }
    }
    found
}

impl<'a> Replicas<'a> {
    /// Gives each pod of the job its role.
    pub(crate) fn of(job: &ValidatedJob, observed: &'a Observed, now: Timestamp) -> Self {
        assign::assign(job, observed, now)
    }

    /// The state as the policies for workers see it: a pod for each replica. Pods without a replica
    /// have no index there, so they are no workers.
    pub(crate) fn view(&self, observed: &Observed) -> Observed {
        let others = self.spares.iter().chain(&self.others);
        let others = others.chain(self.surplus.iter().map(|(pod, _)| pod));
        // What they may still train in is a replica that leaves, or a former one.
        let others = others.map(|pod| Pod {
            index: None,
            membership: pod.membership.clone().map(|document| Membership {
                action: Action::Leave,
                ..document
            }),
            earlier: Vec::new(),
            ..(*pod).clone()
        });
        let replicas = self
            .versioned()
            .map(|(version, it)| combine::combine(it, it.life, version));
        let former = self.former.iter().map(|it| Pod {
            index: None,
            ..combine::combine(it, it.life_in_generation(), "former".to_owned())
        });
        let pods = replicas.chain(former).chain(others);
        let Observed {
            status,
            resource_version,
            service,
            network_policy,
            group,
            group_writes,
            other_groups,
            pods: _,
            taken,
            progress,
            formed,
            progress_interval,
            lost_node_grace,
            fresh,
            clock_off,
            nonce,
            watched_since,
        } = observed;
        Observed {
            status: status.clone(),
            resource_version: resource_version.clone(),
            service: *service,
            network_policy: *network_policy,
            group: group.clone(),
            group_writes: group_writes.clone(),
            other_groups: other_groups.clone(),
            pods: pods.collect(),
            taken: taken.clone(),
            progress: progress.clone(),
            formed: *formed,
            progress_interval: *progress_interval,
            lost_node_grace: *lost_node_grace,
            fresh: *fresh,
            clock_off: *clock_off,
            nonce: nonce.clone(),
            watched_since: *watched_since,
        }
    }

    /// Replicas to which a plan may write, each with what stands for the versions of its pods in
    /// the preconditions of writes. No pod has such a version.
    fn versioned(&self) -> impl Iterator<Item = (String, &Replica<'a>)> {
        let all = self
            .all
            .iter()
            .map(|(index, it)| (format!("replica-{index}"), it));
        let leaving = self.leaving.iter().enumerate();
        all.chain(leaving.map(|(number, it)| (format!("leaving-{number}"), it)))
    }

    /// The replica of a pod, if it has a place in one that is wanted or surplus.
    pub(crate) fn replica_of(&self, pod: &Pod) -> Option<&Replica<'a>> {
        let by_document = pod.replica.as_ref().map(|place| place.replica);
        let by_document = by_document.and_then(|index| self.all.get(&index));
        by_document
            .filter(|replica| replica.has(pod))
            .or_else(|| self.all.get(self.index_of.get(&*pod.uid)?))
    }
}
