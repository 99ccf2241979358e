//! The reads of nodes.

use std::sync::Arc;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use roundhouse_planner::Pod;

use super::{HOSTNAME, Label};
use crate::controller::context::Context;
use crate::controller::resources::worker::NodeRef;
use crate::runtime::api::calls::call;
use crate::runtime::api::metadata::OfKind;

/// Nodes that are read at a time.
const AT_ONCE: usize = 16;

/// Asks for the label of each node of these pods that is not known. Returns whether it is the first answer of one that is
/// still to come.
pub(crate) fn learn(context: &Arc<Context>, pods: &[Pod], key: &str) -> bool {
    if !context.settings.watch_nodes {
        return false;
    }
    let (mut awaits, mut due) = (false, Vec::new());
    for node in pods.iter().filter_map(|pod| pod.node.as_ref()) {
        let label = (node.clone(), key.to_owned());
        let (is_due, is_unknown) = context.topology.begin(&label);
        awaits |= is_unknown;
        due.extend(is_due.then_some(label));
    }
    if !due.is_empty() {
        let context = Arc::clone(context);
        tokio::spawn(async move {
            let labels = stream::iter(due);
            let asked = labels.for_each_concurrent(AT_ONCE, |label| ask(&context, label));
            asked.await;
        });
    }
    awaits
}

async fn ask(context: &Context, label: Label) {
    let nodes = OfKind::all::<Node>(&context.client);
    let (node, key) = &label;
    let value = match call(|| nodes.get(node)).await {
        Ok(found) => found.labels.unwrap_or_default().remove(key),
        Err(error) => {
            tracing::warn!(%error, node, key, "the label of a node cannot be read; ranks do not follow it");
            None
        }
    };
    context.topology.answered(label, value);
}

/// What an affinity calls these nodes. Nodes that are gone are left out: an autoscaler that reads of one makes no other.
pub(crate) async fn references(context: &Context, nodes: &[String]) -> Vec<NodeRef> {
    let asked: Vec<_> = nodes.iter().map(|node| reference(context, node)).collect();
    let references: Vec<Option<NodeRef>> = stream::iter(asked).buffered(AT_ONCE).collect().await;
    references.into_iter().flatten().collect()
}

async fn reference(context: &Context, node: &str) -> Option<NodeRef> {
    // The kubelet gives both the same text, unless an administrator or a cloud provider has chosen another name.
    let likely = || NodeRef::Hostname(node.to_owned());
    if !context.settings.watch_nodes {
        return Some(likely());
    }
    if let Some(hostname) = context.topology.domain(node, HOSTNAME) {
        return Some(NodeRef::Hostname(hostname));
    }
    let nodes = OfKind::all::<Node>(&context.client);
    match call(|| nodes.get(node)).await {
        Ok(found) => {
            let Some(hostname) = found.labels.unwrap_or_default().remove(HOSTNAME) else {
                return Some(NodeRef::Name(node.to_owned()));
            };
            let label = (node.to_owned(), HOSTNAME.to_owned());
            context.topology.answered(label, Some(hostname.clone()));
            Some(NodeRef::Hostname(hostname))
        }
        Err(error) if error.code() == Some(404) => None,
        Err(error) => {
            tracing::warn!(%error, node, "a node cannot be read; its hostname is taken to be its name");
            Some(likely())
        }
    }
}
