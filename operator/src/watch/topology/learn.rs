//! Reads the labels of nodes.

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use roundhouse_planner::Pod;

use super::{HOSTNAME, Label, NodeRef, Topology};
use crate::runtime::api::calls::call;
use crate::runtime::api::metadata::OfKind;

/// Most reads in flight.
const AT_ONCE: usize = 16;

impl Topology {
    /// Reads the label of each node of these pods that is not known, in the background. Returns
    /// whether it is the first answer about one of them that is still to come.
    pub(crate) fn learn(&self, pods: &[Pod], key: &str) -> bool {
        if !self.reads_nodes {
            return false;
        }
        let (mut awaits, mut due) = (false, Vec::new());
        for node in pods.iter().filter_map(|pod| pod.node.as_ref()) {
            let label = (node.clone(), key.to_owned());
            let (is_due, is_unknown) = self.labels.begin(&label);
            awaits |= is_unknown;
            due.extend(is_due.then_some(label));
        }
        if !due.is_empty() {
            let topology = self.clone();
            tokio::spawn(async move {
                let labels = stream::iter(due);
                let reads = labels.for_each_concurrent(AT_ONCE, |label| topology.read(label));
                reads.await;
            });
        }
        awaits
    }

    async fn read(&self, label: Label) {
        let nodes = OfKind::all::<Node>(&self.client);
        let (node, key) = &label;
        match call(|| nodes.get(node)).await {
            Ok(found) => {
                let value = found.labels.unwrap_or_default().remove(key);
                self.labels.answered(label, value);
            }
            Err(error) if error.code() == Some(404) => self.labels.answered(label, None),
            Err(error) => {
                tracing::warn!(%error, node, key, "cannot read the label of a node; its last known value counts");
                self.labels.failed(label);
            }
        }
    }

    /// How an affinity refers to these nodes. Deleted nodes are left out: an autoscaler creates no
    /// node for a pod that names one.
    pub(crate) async fn references(&self, nodes: &[String]) -> Vec<NodeRef> {
        let reads: Vec<_> = nodes.iter().map(|node| self.reference(node)).collect();
        let references: Vec<Option<NodeRef>> =
            stream::iter(reads).buffered(AT_ONCE).collect().await;
        references.into_iter().flatten().collect()
    }

    async fn reference(&self, node: &str) -> Option<NodeRef> {
        // The kubelet gives both the same text, unless an administrator or a cloud provider has
        // chosen another name.
        let likely = || NodeRef::Hostname(node.to_owned());
        if !self.reads_nodes {
            return Some(likely());
        }
        if let Some(hostname) = self.labels.domain(node, HOSTNAME) {
            return Some(NodeRef::Hostname(hostname));
        }
        let nodes = OfKind::all::<Node>(&self.client);
        match call(|| nodes.get(node)).await {
            Ok(found) => {
                let Some(hostname) = found.labels.unwrap_or_default().remove(HOSTNAME) else {
                    return Some(NodeRef::Name(node.to_owned()));
                };
                let label = (node.to_owned(), HOSTNAME.to_owned());
                self.labels.answered(label, Some(hostname.clone()));
                Some(NodeRef::Hostname(hostname))
            }
            Err(error) if error.code() == Some(404) => None,
            Err(error) => {
                tracing::warn!(%error, node, "cannot read a node; the affinity uses the name of the node as its hostname");
                Some(likely())
            }
        }
    }
}
