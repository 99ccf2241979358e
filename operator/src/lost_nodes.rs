//! Nodes that do not answer while a pod on them prepares. Kubernetes tells of a lost node in the `Ready` condition of pods
//! that were Ready; a pod that never was, or that waits for its next generation, shows nothing. So the nodes of pods that
//! have not been Ready for a while are asked for, beside the reconciles. No other node is read.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::ObjectRef;
use roundhouse_api::TrainingJob;
use roundhouse_planner::{Pod, PodPhase};

use crate::cache::{Job, OfJob};

pub(crate) mod pull;

/// Most questions of a tick, 10 a second: with more than 200 such nodes each is asked for less often.
const MAX_QUESTIONS: usize = 50;

/// When nodes are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// A pod that has not been Ready for so long may be on a lost node. Kubernetes takes as long to call a node lost.
    pub doubt: Duration,
    /// Between two questions about one node.
    pub question: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            doubt: Duration::from_secs(50),
            question: Duration::from_secs(20),
        }
    }
}

/// The jobs with a doubtful pod, by node.
type Doubts = BTreeMap<String, Vec<ObjectRef<TrainingJob>>>;

/// What an answer about a node tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// It is as well as it was.
    Nothing,
    /// It is lost now and was not before, or the other way round.
    Changed,
    /// It was lost before. More of its pods may be doubtful now.
    StillLost,
}

/// What is known of nodes of doubtful pods.
#[derive(Debug, Default)]
pub struct LostNodes(Mutex<HashMap<String, Known>>);

#[derive(Debug)]
struct Known {
    asked_at: Instant,
    /// Since when the node is not Ready, by the clock of the control plane.
    lost_since: Option<Timestamp>,
}

impl LostNodes {
    /// Since when the node of a pod does not answer, if the pod is doubtful and Kubernetes says so.
    #[must_use]
    pub fn since(&self, pod: &Pod, terms: Terms) -> Option<Timestamp> {
        let node = pod.node.as_ref()?;
        let since = self.lock().get(node)?.lost_since?;
        is_doubtful(pod, terms, Timestamp::now()).then_some(since)
    }

    /// The nodes to ask for now, those that were not asked for longest first. Others are forgotten.
    fn due(&self, doubts: &Doubts, terms: Terms, now: Instant) -> Vec<String> {
        let mut all = self.lock();
        all.retain(|node, _| doubts.contains_key(node));
        let asked_at = |node: &String| all.get(node).map(|known| known.asked_at);
        let mut due: Vec<(Option<Instant>, &String)> = doubts
            .keys()
            .map(|node| (asked_at(node), node))
            .filter(|(asked_at, _)| {
                asked_at.is_none_or(|at| now.saturating_duration_since(at) >= terms.question)
            })
            .collect();
        due.sort_unstable();
        due.truncate(MAX_QUESTIONS);
        let due: Vec<String> = due.into_iter().map(|(_, node)| node.clone()).collect();
        for node in &due {
            let known = all.entry(node.clone()).or_insert(Known {
                asked_at: now,
                lost_since: None,
            });
            known.asked_at = now;
        }
        due
    }

    /// Takes in an answer.
    fn hear(&self, node: &str, lost_since: Option<Timestamp>) -> News {
        let mut all = self.lock();
        let Some(known) = all.get_mut(node) else {
            return News::Nothing;
        };
        let was_lost = known.lost_since.is_some();
        known.lost_since = lost_since;
        match (was_lost, lost_since.is_some()) {
            (true, true) => News::StillLost,
            (false, false) => News::Nothing,
            (true, false) | (false, true) => News::Changed,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a pod is placed and has not been Ready for so long that its node may be lost without its showing that.
fn is_doubtful(pod: &Pod, terms: Terms, now: Timestamp) -> bool {
    let is_under_way = matches!(pod.phase, PodPhase::Pending | PodPhase::Running);
    let waits = pod.ours && is_under_way && !pod.ready && !pod.deleting && !pod.unreachable;
    // The second is by the node's clock; what lies ahead says nothing.
    let since = [pod.created_at, pod.ready_at].into_iter().flatten();
    let since = since.filter(|at| *at <= now).max();
    let doubt = SignedDuration::try_from(terms.doubt).unwrap_or(SignedDuration::MAX);
    waits && since.is_some_and(|since| now.duration_since(since) >= doubt)
}

fn doubts(pods: &[(Job, OfJob<Pod>)], terms: Terms, now: Timestamp) -> Doubts {
    let mut doubts = Doubts::new();
    for ((namespace, _), pods) in pods {
        let doubtful = pods
            .values()
            .filter(|entry| is_doubtful(&entry.value, terms, now));
        for entry in doubtful {
            let Some(node) = &entry.value.node else {
                continue;
            };
            let jobs = doubts.entry(node.clone()).or_default();
            let job = ObjectRef::new(&entry.job_name).within(namespace);
            if !jobs.contains(&job) {
                jobs.push(job);
            }
        }
    }
    doubts
}

fn lost_since(node: &Node, now: Timestamp) -> Option<Timestamp> {
    let conditions = node.status.as_ref()?.conditions.iter().flatten();
    let ready = conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready")?;
    let since = ready
        .last_transition_time
        .as_ref()
        .map_or(now, |time| time.0);
    (ready.status != "True").then_some(since)
}

#[cfg(test)]
mod tests;
