//! The reads of nodes.

use std::sync::Arc;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use roundhouse_planner::Pod;

use super::Label;
use crate::calls::call;
use crate::context::Context;

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
    let nodes: Api<Node> = Api::all(context.client.clone());
    let (node, key) = &label;
    let value = match call(|| nodes.get_metadata(node)).await {
        Ok(found) => found.labels().get(key).cloned(),
        Err(error) => {
            tracing::warn!(%error, node, key, "the label of a node cannot be read; ranks do not follow it");
            None
        }
    };
    context.topology.answered(label, value);
}
