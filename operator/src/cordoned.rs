//! Names of the nodes that are cordoned. Of all nodes only these are watched, and only their metadata: the
//! API server chooses them by field. It may be empty or late: it only decides who goes first when a job
//! is scaled down.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::watcher::Event;

/// The nodes.
#[derive(Debug, Default)]
pub struct Cordoned(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    nodes: BTreeSet<String>,
    /// A list in progress, which replaces everything when it is complete.
    fresh: BTreeSet<String>,
}

impl Cordoned {
    /// Takes in an event of the watch, reduced to the node's name.
    pub fn take(&self, event: Event<String>) {
        let mut state = self.lock();
        match event {
            Event::Init => state.fresh.clear(),
            Event::InitApply(node) => {
                state.fresh.insert(node);
            }
            Event::InitDone => state.nodes = std::mem::take(&mut state.fresh),
            Event::Apply(node) => {
                state.nodes.insert(node);
            }
            Event::Delete(node) => {
                state.nodes.remove(&node);
            }
        }
    }

    /// Whether a node is cordoned.
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

    #[test]
    fn a_list_replaces_what_was_known() {
        let cordoned = Cordoned::default();
        cordoned.take(Event::Apply("old".to_owned()));
        cordoned.take(Event::Init);
        cordoned.take(Event::InitApply("new".to_owned()));
        assert!(cordoned.contains("old"), "until the list is complete");
        cordoned.take(Event::InitDone);
        assert!(cordoned.contains("new") && !cordoned.contains("old"));
        cordoned.take(Event::Delete("new".to_owned()));
        assert!(!cordoned.contains("new"));
    }
}
