//! Names of the nodes that pods have to leave: they are cordoned, or an autoscaler removes them.
//! The API server cannot select nodes by either, so the operator watches all nodes and keeps only
//! these names. They may be stale: they only decide which workers leave first on a scale-down.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use kube::runtime::watcher::Event;

use self::watched::WatchedNode;

pub(crate) mod watched;

/// The names of these nodes.
#[derive(Debug, Default)]
pub struct Cordoned(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    nodes: BTreeSet<String>,
    /// A list in progress, which replaces everything when it is complete.
    fresh: BTreeSet<String>,
}

impl Cordoned {
    /// Applies an event of the watch.
    pub(crate) fn take(&self, event: Event<WatchedNode>) {
        let mut state = self.lock();
        match event {
            Event::Init => state.fresh.clear(),
            Event::InitApply(node) if node.is_leaving => {
                state.fresh.insert(node.name_any());
            }
            Event::InitApply(_) => {}
            Event::InitDone => state.nodes = std::mem::take(&mut state.fresh),
            Event::Apply(node) if node.is_leaving => {
                state.nodes.insert(node.name_any());
            }
            Event::Apply(node) | Event::Delete(node) => {
                state.nodes.remove(&node.name_any());
            }
        }
    }

    /// Whether a node is cordoned, or about to be removed by an autoscaler.
    #[must_use]
    pub fn contains(&self, node: &str) -> bool {
        self.lock().nodes.contains(node)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, unschedulable: bool) -> WatchedNode {
        let spec = serde_json::json!({"unschedulable": unschedulable});
        let node = serde_json::json!({"metadata": {"name": name}, "spec": spec});
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn complete_list_replaces_the_cordoned_nodes() {
        let cordoned = Cordoned::default();
        cordoned.take(Event::Apply(node("old", true)));
        cordoned.take(Event::Init);
        cordoned.take(Event::InitApply(node("new", true)));
        cordoned.take(Event::InitApply(node("other", false)));
        assert!(cordoned.contains("old"), "until the list is complete");
        cordoned.take(Event::InitDone);
        assert!(cordoned.contains("new") && !cordoned.contains("old"));
        assert!(!cordoned.contains("other"));
        cordoned.take(Event::Delete(node("new", true)));
        assert!(!cordoned.contains("new"));
    }

    #[test]
    fn uncordoned_node_is_not_left() {
        let cordoned = Cordoned::default();
        cordoned.take(Event::Apply(node("n1", true)));
        assert!(cordoned.contains("n1"));
        cordoned.take(Event::Apply(node("n1", false)));
        assert!(!cordoned.contains("n1"));
    }
}
