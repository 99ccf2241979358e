//! Reads the nodes of doubtful pods.

use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::stream::iter;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::GetParams;
use tokio::sync::mpsc::Sender;

use super::{Loss, News, NodeTiming, doubts, loss};
use crate::runtime::api::calls::call;
use crate::runtime::leader_election::Leadership;
use crate::watch::caches::Caches;
use crate::watch::wake::Wake;

/// Most nodes that are read at the same time.
const AT_ONCE: usize = 8;
/// Ticks between two reads of one node.
const TICKS: u32 = 4;

/// Reads the nodes of all doubtful pods until the operator stops, once it leads. Wakes the jobs
/// with a doubtful pod on each node that is lost, or is back.
pub(crate) async fn pull(
    nodes: Api<Node>,
    caches: Arc<Caches>,
    timing: NodeTiming,
    leadership: Arc<Leadership>,
    wake: Sender<Wake>,
) {
    leadership.won().await;
    let mut ticks = tokio::time::interval(timing.interval / TICKS);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let doubts = doubts(&caches.pods.all(), timing, Timestamp::now());
        let due = caches.lost_nodes.due(&doubts, timing, Instant::now());
        let reads = iter(due).map(|node| {
            let nodes = &nodes;
            async move { (read(nodes, &node).await, node) }
        });
        let mut answers = reads.buffer_unordered(AT_ONCE);
        while let Some((answer, node)) = answers.next().await {
            let Some(loss) = answer else { continue };
            match caches.lost_nodes.record(&node, loss) {
                News::Nothing => continue,
                News::StillLost => {}
                News::Changed => tracing::info!(
                    node,
                    is_lost = loss.is_some(),
                    kubelet_answers = loss.is_none_or(|loss| loss.answers),
                    "the state of a node with a pod that is not Ready has changed"
                ),
            }
            for job in doubts.get(&node).into_iter().flatten() {
                // Closed only when the operator stops.
                let _ = wake.send(Wake::by_workers(job.clone())).await;
            }
        }
    }
}

/// Since when and how the node is not Ready, or `Some(None)` if it is Ready. `None`: the node could
/// not be read.
async fn read(nodes: &Api<Node>, name: &str) -> Option<Option<Loss>> {
    // The API server's cache is enough, because the node is read again soon.
    let (recent, now) = (GetParams::any(), Timestamp::now());
    match call(|| nodes.get_with(name, &recent)).await {
        Ok(node) => Some(loss(&node, now)),
        // Kubernetes deletes the pods of a node that is gone.
        Err(error) if error.code() == Some(404) => None,
        Err(error) => {
            tracing::warn!(%error, node = name, "cannot read a node, so it is not known whether it is lost");
            None
        }
    }
}
