//! Labels of nodes that run workers of a job with `scheduling.topologyKey`. The operator reads the
//! metadata of each such node when it first sees it, and again after some time; it never reads
//! other nodes. If it may not read nodes, it knows no labels, and ranks do not follow them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;

mod learn;

/// Label by which an affinity names a node.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// How long a label is used before it is read again. It changes when a node moves to another rack.
const TTL: Duration = Duration::from_secs(600);
/// Labels that no job uses any more are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(3_600);

/// How an affinity of a pod refers to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRef {
    /// By its label `kubernetes.io/hostname`. Autoscalers understand this: Karpenter creates no
    /// node for a pod that names fields.
    Hostname(String),
    /// By its name, because it has no such label.
    Name(String),
}

/// The name of a node, and the key of a label.
type Label = (String, String);

/// The labels of nodes, and how to read them.
#[derive(Clone)]
pub struct Topology {
    client: Client,
    /// Whether the operator may read nodes.
    reads_nodes: bool,
    labels: Arc<Labels>,
}

impl Topology {
    /// No labels are known yet.
    #[must_use]
    pub fn new(client: Client, reads_nodes: bool) -> Self {
        Self {
            client,
            reads_nodes,
            labels: Arc::default(),
        }
    }

    /// The value of a label of a node, if it is known.
    #[must_use]
    pub fn domain(&self, node: &str, key: &str) -> Option<String> {
        self.labels.domain(node, key)
    }
}

/// The labels that were read.
#[derive(Debug, Default)]
struct Labels(Mutex<HashMap<Label, Known>>);

#[derive(Debug)]
struct Known {
    /// `None`: the first read is in flight or failed, or the node does not have the label.
    value: Option<String>,
    /// Whether a read is in flight.
    is_asked: bool,
    /// Whether a read has ended before. Reconciles do not wait for later ones.
    was_answered: bool,
    at: Instant,
}

impl Labels {
    fn domain(&self, node: &str, key: &str) -> Option<String> {
        let label = (node.to_owned(), key.to_owned());
        self.lock().get(&label)?.value.clone()
    }

    /// Whether the label is to be read now, and whether no read has ever ended. It counts as being
    /// read from here on.
    fn begin(&self, label: &Label) -> (bool, bool) {
        let mut all = self.lock();
        let Some(known) = all.get_mut(label) else {
            let is_asked = true;
            let (value, at) = (None, Instant::now());
            all.retain(|_, known| known.at.elapsed() < FORGOTTEN);
            all.insert(
                label.clone(),
                Known {
                    value,
                    is_asked,
                    was_answered: false,
                    at,
                },
            );
            return (true, true);
        };
        let is_first = known.is_asked && !known.was_answered;
        let is_due = !known.is_asked && known.at.elapsed() >= TTL;
        known.is_asked |= is_due;
        (is_due, is_first)
    }

    fn answered(&self, label: Label, value: Option<String>) {
        let (is_asked, at) = (false, Instant::now());
        self.lock().insert(
            label,
            Known {
                value,
                is_asked,
                was_answered: true,
                at,
            },
        );
    }

    /// The read has failed. The value that is known stays.
    fn failed(&self, label: Label) {
        let value = self.lock().get(&label).and_then(|it| it.value.clone());
        self.answered(label, value);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Label, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_read_once_and_again_when_it_is_old() {
        let labels = Labels::default();
        let label = ("n1".to_owned(), "rack".to_owned());
        assert_eq!(labels.begin(&label), (true, true));
        assert_eq!(
            labels.begin(&label),
            (false, true),
            "the read is in progress"
        );
        labels.answered(label.clone(), Some("a".to_owned()));
        labels.failed(label.clone());
        assert_eq!(labels.domain("n1", "rack").as_deref(), Some("a"));
        assert_eq!(labels.begin(&label), (false, false));
        assert_eq!(labels.domain("n1", "rack").as_deref(), Some("a"));
        assert_eq!(labels.domain("n2", "rack"), None);
        let long_ago = Instant::now().checked_sub(TTL).unwrap();
        labels.lock().get_mut(&label).unwrap().at = long_ago;
        assert_eq!(
            labels.begin(&label),
            (true, false),
            "no reconcile waits for it"
        );
        assert_eq!(labels.domain("n1", "rack").as_deref(), Some("a"));
    }

    #[test]
    fn unreadable_label_is_awaited_once() {
        let labels = Labels::default();
        let label = ("n1".to_owned(), "rack".to_owned());
        labels.begin(&label);
        labels.answered(label.clone(), None);
        assert_eq!(labels.begin(&label), (false, false));
        let long_ago = Instant::now().checked_sub(TTL).unwrap();
        labels.lock().get_mut(&label).unwrap().at = long_ago;
        assert_eq!(labels.begin(&label), (true, false));
        assert_eq!(labels.begin(&label), (false, false), "the second time");
    }
}
