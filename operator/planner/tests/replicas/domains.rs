//! One topology domain for each replica (`scheduling.topologyKey`).

use roundhouse_api::TopologyMode;
use roundhouse_planner::{Action, DeleteReason, PodPhase};

use super::cluster::Cluster;

impl Cluster {
    fn label_of(&self, name: &str) -> Option<u32> {
        self.pod(name).replica_label
    }

    fn is_in(&mut self, name: &str, domain: &str) {
        let at = self.at(name);
        self.world.observed.pods[at].domain = Some(domain.to_owned());
    }

    /// Starts the pods that the first plan creates, each in one of these racks.
    fn begin_in(&mut self, racks: &[&str]) {
        self.step();
        for (index, rack) in racks.iter().enumerate() {
            let name = pod(index);
            self.is_in(&name, rack);
            let at = self.at(&name);
            self.world.prepared(at);
            let pod = &mut self.world.observed.pods[at];
            (pod.ready, pod.node) = (false, Some(format!("n{index}")));
        }
        self.settle();
        assert_eq!(self.world.state(), "Training");
    }

    fn domains(&self, replica: u32) -> Vec<Option<String>> {
        let pods = self.replica(replica).into_iter();
        pods.map(|name| self.pod(&name).domain.clone()).collect()
    }
}

pub(crate) fn pod(index: usize) -> String {
    format!("digits-worker-{index}-0")
}

/// A job that trains, with each pod in one of these racks.
pub(crate) fn on_racks(replicas: u32, spares: u32, mode: TopologyMode, racks: &[&str]) -> Cluster {
    let mut cluster = Cluster::with_topology(replicas, spares, mode);
    cluster.begin_in(racks);
    cluster
}

/// A job of two replicas and a spare. The replicas are in the racks a and b, the spare in b.
fn on_two_racks(mode: TopologyMode) -> Cluster {
    on_racks(2, 1, mode, &["a", "a", "b", "b", "b"])
}

#[test]
fn pods_are_created_for_replicas_and_spares_for_none() {
    for mode in [TopologyMode::Preferred, TopologyMode::Required] {
        let plan = Cluster::with_topology(2, 1, mode).step();
        let created = plan.actions.iter().filter_map(|action| match action {
            Action::CreateWorker { index, replica, .. } => Some((*index, *replica)),
            _ => None,
        });
        let created: Vec<(u32, Option<u32>)> = created.collect();
        let expected = [Some(0), Some(0), Some(1), Some(1), None];
        let expected: Vec<(u32, Option<u32>)> = (0..).zip(expected).collect();
        assert_eq!(created, expected);
    }
}

#[test]
fn pod_that_replaces_another_one_is_placed_near_its_replica() {
    let mut cluster = on_two_racks(TopologyMode::Required);
    cluster.vanishes("digits-worker-1-0");
    cluster.settle();
    assert_eq!(cluster.label_of("digits-worker-1-0"), Some(0));
    let replica = ["digits-worker-0-0", "digits-worker-1-0"];
    assert_eq!(cluster.replica(0), replica);
    assert_eq!(cluster.pod(replica[1]).domain.as_deref(), Some("a"));
}

#[test]
fn spare_elsewhere_takes_a_place_if_domains_are_preferred() {
    for (mode, comes) in [
        (TopologyMode::Preferred, true),
        (TopologyMode::Required, false),
    ] {
        let mut cluster = on_two_racks(mode);
        cluster.vanishes("digits-worker-1-0");
        cluster.step();
        cluster.step();
        let spare = cluster.replica(0).contains(&"digits-worker-4-0".to_owned());
        assert_eq!(spare, comes, "{mode:?}");
        cluster.settle();
        let expected = comes.then_some(0);
        assert_eq!(cluster.label_of("digits-worker-4-0"), expected, "{mode:?}");
        assert_eq!(cluster.num_replicas(), 2, "{mode:?}");
    }
}

#[test]
fn spare_in_the_domain_takes_the_place() {
    let mut cluster = on_two_racks(TopologyMode::Required);
    cluster.vanishes("digits-worker-3-0");
    cluster.step();
    cluster.step();
    assert_eq!(
        cluster.replica(1),
        ["digits-worker-2-0", "digits-worker-4-0"]
    );
    cluster.settle();
    // The next pod with the index is the spare, wherever it was placed.
    assert_eq!(cluster.label_of("digits-worker-3-0"), None);
    assert_eq!(cluster.label_of("digits-worker-4-0"), Some(1));
}

#[test]
fn free_pods_of_the_domain_come_first() {
    let mut cluster = Cluster::with_topology(2, 0, TopologyMode::Preferred);
    // The scheduler had no room for the pods of a replica in one rack.
    cluster.begin_in(&["a", "b", "a", "b"]);
    for replica in [0, 1] {
        let domains = cluster.domains(replica);
        assert_eq!(domains[0], domains[1], "{domains:?}");
    }
}

/// A spare that has no node yet, or one whose rack is unknown, may be anywhere.
#[test]
fn spare_of_unknown_domain_takes_no_place_if_it_is_required() {
    for has_node in [false, true] {
        let mut cluster = on_two_racks(TopologyMode::Required);
        let at = cluster.at(&pod(4));
        let spare = &mut cluster.world.observed.pods[at];
        spare.domain = None;
        if !has_node {
            (spare.node, spare.phase) = (None, PodPhase::Pending);
        }
        cluster.vanishes(&pod(1));
        cluster.step();
        assert_eq!(cluster.label_of(&pod(1)), Some(0), "{has_node}");
        cluster.step();
        assert!(!cluster.replica(0).contains(&pod(4)), "{has_node}");
        cluster.settle();
        assert_eq!(cluster.num_replicas(), 2, "{has_node}");
    }
}

#[test]
fn torn_replicas_of_one_domain_are_put_together() {
    let mut cluster = Cluster::with_topology(3, 0, TopologyMode::Required);
    cluster.begin_in(&["a", "a", "b", "b", "b", "b"]);
    for index in [1, 3, 5] {
        cluster.vanishes(&pod(index));
    }
    // There is no room for other pods.
    for _ in 0..10 {
        cluster.agents_work();
        cluster.step();
        cluster.world.seconds_pass(10);
    }
    assert_eq!(cluster.replica(1), [pod(2), pod(4)]);
    let membership = cluster.world.observed.status.membership.clone().unwrap();
    assert_eq!((cluster.world.state(), membership.nodes), ("Training", 1));
}

#[test]
fn pod_that_fits_no_replica_is_created_again() {
    let mut cluster = on_two_racks(TopologyMode::Required);
    cluster.world.job.spares = 0;
    cluster.settle();
    cluster.vanishes("digits-worker-1-0");
    for _ in 0..10 {
        if cluster.world.observed.pods.len() < 4 {
            cluster.step();
        }
    }
    // Its label was lost, so that the scheduler has placed it elsewhere.
    cluster.is_in("digits-worker-1-0", "b");
    let at = cluster.at("digits-worker-1-0");
    cluster.world.observed.pods[at].node = Some("n9".to_owned());
    let deleted = (0..5).find_map(|_| {
        let attracts = cluster.label_of(&pod(1)).is_some();
        let actions = cluster.step().actions.into_iter();
        let mut deleted = actions.filter_map(|action| match action {
            Action::DeletePod { pod, reason, .. } => Some((pod, reason, attracts)),
            _ => None,
        });
        deleted.next()
    });
    let expected = (pod(1), DeleteReason::FitsNoReplica, false);
    assert_eq!(deleted, Some(expected), "it attracts no pods any more");
    cluster.settle();
    assert_eq!(cluster.num_replicas(), 2);
    let domain = &cluster.pod("digits-worker-1-0").domain;
    assert_eq!(domain.as_deref(), Some("a"));
}

#[test]
fn jobs_without_a_topology_for_each_replica_have_no_labels() {
    let mut cluster = Cluster::training(2, 1);
    assert!((0..5).all(|index| {
        cluster
            .label_of(&format!("digits-worker-{index}-0"))
            .is_none()
    }));
    cluster.vanishes("digits-worker-1-0");
    cluster.settle();
    assert_eq!(cluster.label_of("digits-worker-1-0"), None);
}
