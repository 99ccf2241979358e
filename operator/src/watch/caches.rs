//! All caches that the watches fill.

use std::sync::Arc;

use jiff::Timestamp;
use roundhouse_planner::Pod;
use tokio::sync::SetOnce;

use super::cache::Cache;
use super::cordoned::Cordoned;
use super::lost_nodes::LostNodes;
use super::namespaces::Namespaces;
use super::pod_groups::Groups;
use super::projection::OwnedObject;

/// The caches of all jobs' objects.
#[derive(Debug, Default)]
pub struct Caches {
    pub pods: Cache<Pod>,
    pub services: Cache<OwnedObject>,
    pub network_policies: Cache<OwnedObject>,
    /// The PodGroups of jobs with a gang scheduler.
    pub groups: Groups,
    /// Nodes that pods have to leave; empty when nodes are not watched.
    pub cordoned: Cordoned,
    /// Those nodes of pods that are not Ready which do not answer themselves.
    pub lost_nodes: LostNodes,
    /// Labels of namespaces, if the limits of jobs depend on them.
    pub(crate) namespaces: Option<Arc<Namespaces>>,
    filled_at: SetOnce<Timestamp>,
}

impl Caches {
    pub(crate) fn new(namespaces: Option<Arc<Namespaces>>) -> Self {
        Self {
            namespaces,
            ..Self::default()
        }
    }

    /// A cache has been filled: if it is the last one, the operator can reconcile jobs.
    pub(crate) fn note_filled(&self) {
        let namespaces = self.namespaces.as_ref();
        let is_filled = self.pods.is_synced()
            && self.services.is_synced()
            && self.network_policies.is_synced()
            && namespaces.is_none_or(|namespaces| namespaces.is_synced());
        if is_filled {
            // The caches are filled again after each gap; only the first time counts.
            let _ = self.filled_at.set(Timestamp::now());
        }
    }

    /// When all caches were filled for the first time.
    #[must_use]
    pub fn filled_at(&self) -> Option<Timestamp> {
        self.filled_at.get().copied()
    }

    /// Waits until all caches are filled.
    pub(crate) async fn filled(&self) {
        self.filled_at.wait().await;
    }
}
