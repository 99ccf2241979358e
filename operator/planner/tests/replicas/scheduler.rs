//! Topology domains without room, with a scheduler that works between two writes of the operator.

use std::collections::BTreeMap;

use roundhouse_api::TopologyMode;
use roundhouse_planner::{Action, DeleteReason, PodPhase};

use super::cluster::Cluster;
use super::domains::{on_racks, pod};

impl Cluster {
    /// Places the pods without a node in the rack that has room, if pods with their label are
    /// there, or nowhere. Terminating pods attract others, too.
    fn schedule_in(&mut self, rack: &str) {
        for at in 0..self.world.observed.pods.len() {
            let pods = &self.world.observed.pods;
            let label = pods[at].replica_label;
            if pods[at].node.is_some() || pods[at].deleting {
                continue;
            }
            let like_it = pods.iter().filter(|it| {
                let attracts = it.node.is_some() && !it.left_domain;
                attracts && label.is_some() && it.replica_label == label
            });
            let mut racks = like_it.filter_map(|it| it.domain.as_deref()).peekable();
            if racks.peek().is_none() || racks.any(|it| it == rack) {
                let pod = &mut self.world.observed.pods[at];
                pod.domain = Some(rack.to_owned());
                pod.node = Some(format!("{rack}-{}", pod.uid));
            }
        }
    }

    /// Makes the writes one by one. Deleted pods terminate for 30 s. Returns the number of pods
    /// that were created.
    fn run_with_room_in(&mut self, rack: &str, num_rounds: u32) -> u32 {
        const ROUNDS_TO_TERMINATE: u32 = 6;
        self.world.lingering = true;
        let mut num_created = 0;
        let mut terminating = BTreeMap::<String, u32>::new();
        for round in 0..num_rounds {
            self.world.observed.nonce = format!("{round:032x}");
            self.world.seconds_pass(5);
            self.agents_work();
            let plan = self.world.plan();
            for action in &plan.actions {
                let is_done = self.world.act(action);
                num_created += u32::from(is_done && matches!(action, Action::CreateWorker { .. }));
                self.schedule_in(rack);
            }
            self.world.observed.status = plan.status;
            for pod in self.world.observed.pods.iter().filter(|pod| pod.deleting) {
                *terminating.entry(pod.uid.clone()).or_default() += 1;
            }
            let is_there = |uid: &String| {
                let rounds = terminating.get(uid);
                rounds.is_none_or(|rounds| *rounds < ROUNDS_TO_TERMINATE)
            };
            self.world.observed.pods.retain(|pod| is_there(&pod.uid));
        }
        num_created
    }
}

/// An operator without these labels has created the pods.
#[test]
fn successor_waits_for_room_near_pods_without_labels() {
    let mut cluster = on_racks(1, 0, TopologyMode::Required, &["a", "a"]);
    for pod in &mut cluster.world.observed.pods {
        pod.replica_label = None;
    }
    cluster.vanishes(&pod(1));
    assert_eq!(cluster.run_with_room_in("c", 100), 1);
    assert_eq!(cluster.pod(&pod(1)).node, None);
}

#[test]
fn successor_waits_for_room_near_a_spare_that_took_a_place() {
    let mut cluster = on_racks(1, 1, TopologyMode::Required, &["a", "a", "a"]);
    cluster.vanishes(&pod(1));
    cluster.run_with_room_in("c", 1);
    cluster.vanishes(&pod(0));
    assert!(cluster.run_with_room_in("c", 100) <= 2);
    let pods = cluster.world.observed.pods.iter();
    assert!(
        pods.filter(|pod| pod.replica_label == Some(0))
            .all(|pod| pod.domain.as_deref() != Some("c"))
    );
}

/// Its label was changed by hand, so that the scheduler has placed it elsewhere. While it
/// terminates it must not attract its successor.
#[test]
fn misplaced_pod_is_created_again_once() {
    let mut cluster = on_racks(1, 0, TopologyMode::Required, &["a", "a"]);
    cluster.vanishes(&pod(1));
    cluster.step();
    let at = cluster.at(&pod(1));
    let misplaced = &mut cluster.world.observed.pods[at];
    (misplaced.node, misplaced.domain) = (Some("n9".to_owned()), Some("c".to_owned()));
    assert!(cluster.run_with_room_in("c", 100) <= 1);
    assert_eq!(cluster.world.observed.pods.len(), 2);
}

#[test]
fn of_two_pods_the_one_that_cannot_train_yet_is_created_again() {
    let racks = ["a", "a", "b", "b", "c"];
    let mut cluster = on_racks(2, 1, TopologyMode::Required, &racks);
    cluster.vanishes(&pod(1));
    cluster.step();
    let at = cluster.at(&pod(1));
    let misplaced = &mut cluster.world.observed.pods[at];
    (misplaced.node, misplaced.domain) = (Some("n9".to_owned()), Some("d".to_owned()));
    for _ in 0..3 {
        for action in cluster.step().actions {
            if let Action::DeletePod {
                pod: name, reason, ..
            } = action
            {
                assert_eq!((name, reason), (pod(1), DeleteReason::FitsNoReplica));
                return;
            }
        }
    }
    unreachable!("no pod is deleted");
}

#[test]
fn plan_writes_to_a_pod_once() {
    let mut cluster = on_racks(1, 1, TopologyMode::Required, &["a", "a", "a"]);
    let at = cluster.at(&pod(1));
    cluster.world.fails(at, "Evicted");
    cluster.agents_work();
    // No life can begin while the container of the other pod restarts.
    cluster.container_dies(&pod(0));
    for round in 0..6 {
        cluster.world.observed.nonce = format!("{round:032x}");
        let plan = cluster.step();
        let mut written = BTreeMap::<&str, Vec<&Action>>::new();
        for action in &plan.actions {
            if let Action::LabelReplica { pod, .. }
            | Action::DeletePod { pod, .. }
            | Action::PlaceInReplica { pod, .. }
            | Action::IssueMembership { pod, .. } = action
            {
                written.entry(pod).or_default().push(action);
            }
        }
        assert!(written.values().all(|all| all.len() == 1), "{written:?}");
        cluster.agents_work();
    }
    let pods = cluster.world.observed.pods.iter();
    assert!(pods.filter(|pod| pod.phase == PodPhase::Failed).count() < 2);
}
