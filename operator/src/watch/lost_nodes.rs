//! Nodes that do not answer. Kubernetes tells of a lost node in the `Ready` condition of pods that were Ready; a pod that never
//! was, or that waits for its next generation, shows nothing. So the nodes of pods that have not been Ready for a while are
//! read, beside the reconciles, and those of pods that show a lost node: whether its kubelet lives. No other node is read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use roundhouse_planner::{Pod, PodPhase};

use crate::job::{JobKey, JobName};
use crate::watch::cache::OfJob;

pub(crate) mod pull;

/// Most questions of a tick, 10 a second: with more than 200 such nodes each is asked for less often.
const MAX_READS: usize = 50;

/// When nodes are asked for.
#[derive(Clone, Copy, Debug)]
pub struct NodeTiming {
    /// A pod that has not been Ready for so long may be on a lost node. Kubernetes takes as long to call a node lost.
    pub doubt: Duration,
    /// Between two questions about one node.
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

/// The jobs with a doubtful pod, by node.
type Doubts = BTreeMap<String, Vec<JobName>>;

/// What an answer about a node tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// It is as well as it was.
    Nothing,
    /// It is lost now and was not before, or the other way round, or is lost in another way.
    Changed,
    /// It was lost before. More of its pods may be doubtful now.
    StillLost,
}

/// What is known of nodes of doubtful pods.
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
    /// Since when, by the clock of the control plane.
    pub since: Timestamp,
    /// Whether its kubelet says so (`False`), which lives then; else nobody has heard of it (`Unknown`).
    pub answers: bool,
}

impl LostNodes {
    /// What is known of the node of a pod that does not answer, if the pod is doubtful and Kubernetes says so.
    #[must_use]
    pub fn of(&self, pod: &Pod, timing: NodeTiming) -> Option<Loss> {
        let node = pod.node.as_ref()?;
        let loss = self.lock().get(node)?.loss?;
        is_doubtful(pod, timing, Timestamp::now()).then_some(loss)
    }

    /// The nodes to ask for now, one of each namespace in turn, and of each those that were not asked for longest first. Others
    /// are forgotten.
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

    /// Takes in an answer.
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

/// Whether a pod is placed and shows that its node is lost, or has not been Ready for so long that it may be without showing it.
fn is_doubtful(pod: &Pod, timing: NodeTiming, now: Timestamp) -> bool {
    let is_under_way = matches!(pod.phase, PodPhase::Pending | PodPhase::Running);
    let waits = pod.ours && is_under_way && !pod.ready && !pod.deleting;
    if pod.unreachable {
        return waits;
    }
    // The second is by the node's clock; what lies ahead says nothing.
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
