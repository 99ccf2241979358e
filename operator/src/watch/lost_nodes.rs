//! Nodes that do not answer. Kubernetes reports a lost node in the `Ready` condition of pods that
//! were Ready. A pod that never was, or that waits for its next generation, shows nothing. So the
//! operator reads the nodes of pods that have not been Ready for some time, beside the reconciles,
//! and those of pods that show a lost node: their kubelet may be alive. It reads no other node.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use roundhouse_planner::{Pod, PodPhase};

use crate::job::{JobKey, JobName};
use crate::watch::cache::OfJob;

pub(crate) mod pull;

/// Most reads per tick, 10 per second. With more than 200 such nodes each is read less often.
const MAX_READS: usize = 50;

/// Timing of the reads.
#[derive(Clone, Copy, Debug)]
pub struct NodeTiming {
    /// A pod that has not been Ready for this long may be on a lost node. Kubernetes takes as long
    /// to call a node lost.
    pub doubt: Duration,
    /// Time between two reads of one node.
    pub interval: Duration,
}

impl Default for NodeTiming {
    fn default() -> Self {
        Self {
            doubt: Duration::from_secs(50),
            interval: Duration::from_secs(20),
        }
    }
}

/// The jobs with a doubtful pod (one that may be on a lost node), by node.
type Doubts = BTreeMap<String, Vec<JobName>>;

/// The change that a read of a node shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// The node is still healthy.
    Nothing,
    /// The node is lost now and was not before, or the reverse, or it is lost in another way.
    Changed,
    /// The node was lost before. More of its pods may be doubtful now.
    StillLost,
}

/// The known state of the nodes of doubtful pods.
#[derive(Debug, Default)]
pub struct LostNodes(Mutex<HashMap<String, Known>>);

#[derive(Debug)]
struct Known {
    read_at: Instant,
    loss: Option<Loss>,
}

/// A node that is not Ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Since when the node is not Ready, by the clock of the control plane.
    pub since: Timestamp,
    /// Whether its kubelet reports that (`False`), and so is alive. Otherwise the control plane
    /// receives nothing from it (`Unknown`).
    pub answers: bool,
}

impl LostNodes {
    /// The loss of a pod's node, if the pod is doubtful and Kubernetes reports the loss.
    #[must_use]
    pub fn of(&self, pod: &Pod, timing: NodeTiming) -> Option<Loss> {
        let node = pod.node.as_ref()?;
        let loss = self.lock().get(node)?.loss?;
        is_doubtful(pod, timing, Timestamp::now()).then_some(loss)
    }

    /// The nodes to read now: namespaces take turns, and the nodes that were not read for the
    /// longest time go first. Nodes without doubtful pods are forgotten.
    fn due(&self, doubts: &Doubts, timing: NodeTiming, now: Instant) -> Vec<String> {
        let mut all = self.lock();
        all.retain(|node, _| doubts.contains_key(node));
        let read_at = |node: &String| all.get(node).map(|known| known.read_at);
        let mut due: Vec<(Option<Instant>, &String)> = doubts
            .keys()
            .map(|node| (read_at(node), node))
            .filter(|(read_at, _)| {
                read_at.is_none_or(|at| now.saturating_duration_since(at) >= timing.interval)
            })
            .collect();
        due.sort_unstable();
        let mut due = by_turns(due.into_iter().map(|(_, node)| node), doubts);
        due.truncate(MAX_READS);
        for node in &due {
            let known = all.entry(node.clone()).or_insert(Known {
                read_at: now,
                loss: None,
            });
            known.read_at = now;
        }
        due
    }

    fn record(&self, node: &str, loss: Option<Loss>) -> News {
        let mut all = self.lock();
        let Some(known) = all.get_mut(node) else {
            return News::Nothing;
        };
        let before = std::mem::replace(&mut known.loss, loss);
        match (before.map(|it| it.answers), loss.map(|it| it.answers)) {
            (None, None) => News::Nothing,
            (Some(before), Some(now)) if before == now => News::StillLost,
            (None | Some(_), None | Some(_)) => News::Changed,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Namespaces take turns, so that one with many doubtful pods does not delay the others.
fn by_turns<'a>(nodes: impl Iterator<Item = &'a String>, doubts: &Doubts) -> Vec<String> {
    let mut turns = HashMap::<&str, usize>::new();
    let mut in_turn = |node: &'a String| {
        let jobs = doubts.get(node).into_iter().flatten();
        let namespaces: BTreeSet<&str> = jobs.map(|job| &*job.namespace).collect();
        let turn_of = |namespace: &&str| turns.get(namespace).copied().unwrap_or_default();
        let turn = namespaces.iter().map(turn_of).min().unwrap_or_default();
        for namespace in namespaces {
            *turns.entry(namespace).or_default() += 1;
        }
        (turn, node)
    };
    let mut nodes: Vec<(usize, &String)> = nodes.map(&mut in_turn).collect();
    nodes.sort_by_key(|(turn, _)| *turn);
    nodes.into_iter().map(|(_, node)| node.clone()).collect()
}

/// Whether a pod may be on a lost node: it shows that its node is lost, or it has not been Ready
/// for `timing.doubt`.
fn is_doubtful(pod: &Pod, timing: NodeTiming, now: Timestamp) -> bool {
    let is_under_way = matches!(pod.phase, PodPhase::Pending | PodPhase::Running);
    let waits = pod.ours && is_under_way && !pod.ready && !pod.deleting;
    if pod.unreachable {
        return waits;
    }
    // `ready_at` is by the node's clock; a time in the future proves nothing.
    let since = [pod.created_at, pod.ready_at].into_iter().flatten();
    let since = since.filter(|at| *at <= now).max();
    let doubt = SignedDuration::try_from(timing.doubt).unwrap_or(SignedDuration::MAX);
    waits && since.is_some_and(|since| now.duration_since(since) >= doubt)
}

fn doubts(pods: &[(JobKey, OfJob<Pod>)], timing: NodeTiming, now: Timestamp) -> Doubts {
    let mut doubts = Doubts::new();
    for (JobKey { namespace, .. }, pods) in pods {
        let doubtful = pods
            .values()
            .filter(|entry| is_doubtful(&entry.value, timing, now));
        for entry in doubtful {
            let Some(node) = &entry.value.node else {
                continue;
            };
            let jobs = doubts.entry(node.clone()).or_default();
            let job = JobName::new(namespace, &entry.job_name);
            if !jobs.contains(&job) {
                jobs.push(job);
            }
        }
    }
    doubts
}

fn loss(node: &Node, now: Timestamp) -> Option<Loss> {
    let conditions = node.status.as_ref()?.conditions.iter().flatten();
    let ready = conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready")?;
    let since = ready
        .last_transition_time
        .as_ref()
        .map_or(now, |time| time.0);
    let answers = ready.status == "False";
    (ready.status != "True").then_some(Loss { since, answers })
}

#[cfg(test)]
mod tests;
