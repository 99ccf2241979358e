//! One topology domain for each replica (`scheduling.topologyKey`).

use roundhouse_api::TopologyMode;
use roundhouse_planner::{Action, DeleteReason};

use super::cluster::Cluster;

impl Cluster {
    fn label_of(&self, name: &str) -> Option<u32> {
        self.pod(name).replica_label
    }

    fn is_in(&mut self, name: &str, domain: &str) {
        let at = self.at(name);
        self.world.observed.pods[at].domain = Some(domain.to_owned());
    }
}

/// A job of two replicas and a spare. The replicas are in the racks a and b, the spare in b.
fn on_two_racks(mode: TopologyMode) -> Cluster {
    let mut cluster = Cluster::with_topology(2, 1, mode);
    cluster.step();
    for index in 0..5 {
        let name = format!("digits-worker-{index}-0");
        cluster.is_in(&name, if index < 2 { "a" } else { "b" });
        let at = cluster.at(&name);
        cluster.world.prepared(at);
        let pod = &mut cluster.world.observed.pods[at];
        (pod.ready, pod.node) = (false, Some(format!("n{index}")));
    }
    cluster.settle();
    assert_eq!(cluster.world.state(), "Training");
    cluster
}

#[test]
fn pods_are_created_for_replicas_and_spares_for_none() {
    let cluster = on_two_racks(TopologyMode::Preferred);
    let labels: Vec<Option<u32>> = (0..5)
        .map(|index| cluster.label_of(&format!("digits-worker-{index}-0")))
        .collect();
    assert_eq!(labels, [Some(0), Some(0), Some(1), Some(1), None]);
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
    cluster.step();
    // The scheduler had no room for the pods of a replica in one rack.
    for (index, rack) in ["a", "b", "a", "b"].iter().enumerate() {
        let name = format!("digits-worker-{index}-0");
        cluster.is_in(&name, rack);
        let at = cluster.at(&name);
        cluster.world.prepared(at);
        let pod = &mut cluster.world.observed.pods[at];
        (pod.ready, pod.node) = (false, Some(format!("n{index}")));
    }
    cluster.settle();
    for replica in [0, 1] {
        let pods = cluster.replica(replica);
        let domains = pods.iter().map(|name| cluster.pod(name).domain.clone());
        let domains: Vec<_> = domains.collect();
        assert_eq!(domains[0], domains[1], "{pods:?}");
    }
}

#[test]
fn pod_that_fits_no_replica_is_created_again() {
    let mut cluster = on_two_racks(TopologyMode::Required);
    cluster.world.job.spares = 0;
    cluster.settle();
    cluster.vanishes("digits-worker-1-0");
    while cluster.world.observed.pods.len() < 4 {
        cluster.step();
    }
    // Its label was lost, so that the scheduler has placed it elsewhere.
    cluster.is_in("digits-worker-1-0", "b");
    let at = cluster.at("digits-worker-1-0");
    cluster.world.observed.pods[at].node = Some("n9".to_owned());
    let plan = cluster.step();
    let deleted = plan.actions.iter().find_map(|action| match action {
        Action::DeletePod { pod, reason, .. } => Some((pod.as_str(), *reason)),
        _ => None,
    });
    let expected = ("digits-worker-1-0", DeleteReason::OtherDomain);
    assert_eq!(deleted, Some(expected));
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
