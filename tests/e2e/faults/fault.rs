//! Faults of one worker, and the number of incidents that each must cause.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, EvictParams};
use roundhouse_tests::cluster::{DEADLINE, until};
use roundhouse_tests::{nodes, processes};
use rustix::process::Signal;

use super::drill::Drill;

/// A fault of one worker.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// `kill -9` of rank 0's process.
    KillRankZero,
    /// `kill -9` of another rank's process.
    KillAnother,
    /// `kubectl delete pod` with its usual grace period.
    Delete,
    /// `kubectl delete pod --grace-period=0 --force`.
    DeleteByForce,
    /// `kubectl drain` of its node: the node is cordoned, then the pod is evicted.
    Drain,
}

impl Fault {
    /// The fault's part of the namespace's name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::KillRankZero => "kill-zero",
            Self::KillAnother => "kill-another",
            Self::Delete => "delete",
            Self::DeleteByForce => "force-delete",
            Self::Drain => "drain",
        }
    }

    /// The number of incidents that the job's status must show.
    pub(super) const fn incidents(self) -> u32 {
        match self {
            Self::KillRankZero | Self::KillAnother => 1,
            Self::Delete | Self::DeleteByForce | Self::Drain => 0,
        }
    }

    /// The pod that the fault hits, and the other pods. `members` is in the order of node ranks.
    pub(super) fn victim(self, members: &[Pod]) -> (String, Vec<String>) {
        let mut names: Vec<String> = members.iter().map(ResourceExt::name_any).collect();
        let victim = match self {
            Self::KillRankZero => names.remove(0),
            _ => names.remove(1),
        };
        (victim, names)
    }

    /// Injects the fault, and waits until the kubelet has restarted or removed the pod.
    pub(super) async fn inject(self, drill: &Drill, victim: &str) {
        let pods = drill.space.pods();
        let pod = pods.get(victim).await.unwrap();
        match self {
            Self::KillRankZero | Self::KillAnother => {
                let rank = nodes::process(&drill.space.name, victim).unwrap();
                assert!(processes::send(rank, Signal::KILL));
                restarts(&pods, victim).await;
            }
            Self::Delete => {
                let gracefully = DeleteParams::default();
                pods.delete(victim, &gracefully).await.unwrap();
                drill.wait_until_gone(&pod).await;
            }
            Self::DeleteByForce => {
                let at_once = DeleteParams::default().grace_period(0);
                pods.delete(victim, &at_once).await.unwrap();
                drill.wait_until_gone(&pod).await;
            }
            Self::Drain => {
                let node = pod.spec.as_ref().unwrap().node_name.clone().unwrap();
                let all: Api<Node> = Api::all(drill.space.client.clone());
                all.cordon(&node).await.unwrap();
                let evicted = pods.evict(victim, &EvictParams::default()).await;
                drill.wait_until_gone(&pod).await;
                all.uncordon(&node).await.unwrap();
                evicted.unwrap();
            }
        }
    }
}

async fn restarts(pods: &Api<Pod>, name: &str) {
    until("the container restarts", DEADLINE, || async {
        let status = pods.get(name).await?.status.unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let running = containers.first().is_some_and(|it| {
            it.restart_count == 1
                && it
                    .state
                    .as_ref()
                    .is_some_and(|state| state.running.is_some())
        });
        Ok(running.then_some(()))
    })
    .await
    .unwrap();
}
