//! The PodGroups of gangs: their numbers, their minimums, and what other clients do to them.

use std::time::Duration;

use roundhouse_api::Gang;
use roundhouse_planner::{GroupWrites, ObservedGroup, OtherGroup, Repair};

use super::super::cluster::Cluster;
use super::{created, minimum};

#[test]
fn gang_goes_with_its_replica() {
    let mut cluster = Cluster::of(3, 0).with_gang(Gang::Coscheduling);
    cluster.settle();
    cluster.world.job.replicas = 1;
    cluster.settle();
    let numbers = |cluster: &Cluster| -> Vec<u32> {
        (1..4)
            .filter(|gang| minimum(&cluster.world, *gang).is_some())
            .collect()
    };
    assert_eq!(numbers(&cluster).len(), 0, "the first replica stays");
    cluster.world.job.replicas = 2;
    cluster.settle();
    assert_eq!(numbers(&cluster), [1]);
    cluster.world.job.suspend = true;
    cluster.settle();
    assert_eq!(minimum(&cluster.world, 0), None);
    assert_eq!(numbers(&cluster).len(), 0);
}

/// A first gang that has lost a replica to a smaller job does not wait for its pods.
#[test]
fn minimum_falls_with_the_pods_that_are_left() {
    let mut cluster = Cluster::of(3, 0).with_gang(Gang::Coscheduling);
    cluster.world.job.min_replicas = 2;
    cluster.settle();
    assert_eq!(minimum(&cluster.world, 0), Some(4));
    cluster.vanishes("digits-worker-2-0");
    cluster.vanishes("digits-worker-3-0");
    cluster.world.job.replicas = 2;
    cluster.settle();
    assert_eq!(minimum(&cluster.world, 0), Some(2));
    cluster.vanishes("digits-worker-0-0");
    cluster.settle();
    assert_eq!(cluster.gang_of("digits-worker-0-0"), 0);
    assert_eq!(cluster.num_replicas(), 2);
}

#[test]
fn gang_takes_a_number_whose_name_is_free() {
    let foreign = [ObservedGroup::Foreign, ObservedGroup::ForeignLeaving];
    let mut worlds: Vec<Cluster> = Vec::new();
    for observed in foreign {
        let mut cluster = Cluster::of(2, 0).with_gang(Gang::Coscheduling);
        let other = OtherGroup {
            observed,
            writes: GroupWrites::default(),
        };
        cluster.world.observed.other_groups.insert(1, other);
        worlds.push(cluster);
    }
    let mut cluster = Cluster::of(2, 0).with_gang(Gang::Coscheduling);
    cluster
        .world
        .observed
        .taken
        .push("PodGroup digits-gang-1".to_owned());
    worlds.push(cluster);
    for mut cluster in worlds {
        cluster.settle();
        assert_eq!(cluster.gang_of("digits-worker-2-0"), 2);
        assert_eq!(
            (cluster.world.state(), cluster.num_replicas()),
            ("Training", 2)
        );
    }
}

#[test]
fn lost_group_of_a_further_gang_is_reported() {
    let pause = Duration::from_mins(1);
    let mut cluster = Cluster::of(2, 0).with_gang(Gang::Coscheduling);
    cluster.settle();
    let other = |observed: ObservedGroup, deleted: Repair| OtherGroup {
        observed,
        writes: GroupWrites {
            deleted,
            ..GroupWrites::default()
        },
    };
    for (group, words) in [
        (
            other(ObservedGroup::Foreign, Repair::Now),
            "digits-gang-1 exists and does not belong",
        ),
        (
            other(ObservedGroup::Missing, Repair::Later(pause)),
            "digits-gang-1 was deleted again",
        ),
    ] {
        cluster.world.observed.other_groups.insert(1, group);
        let plan = cluster.world.plan();
        assert_eq!(created(&plan), []);
        let blocked = &plan.status.blocked;
        assert!(blocked[0].message.contains(words), "{blocked:?}");
    }
    let missing = other(ObservedGroup::Missing, Repair::Now);
    cluster.world.observed.other_groups.insert(1, missing);
    cluster.settle();
    assert_eq!(minimum(&cluster.world, 1), Some(2));
}

#[test]
fn pods_of_a_terminating_group_wait_for_its_end() {
    let mut cluster = Cluster::of(2, 0).with_gang(Gang::Coscheduling);
    cluster.settle();
    if let ObservedGroup::Ours { deleting, .. } = cluster.world.group_mut(1) {
        *deleting = true;
    }
    let mut held = cluster.world.clone();
    held.job.scheduling.gang = Gang::Kubernetes;
    cluster.vanishes("digits-worker-3-0");
    assert_eq!(created(&cluster.world.plan()), []);
    held.observed
        .pods
        .retain(|pod| pod.name != "digits-worker-3-0");
    assert_eq!(created(&held.plan()), [(3, 1)], "its pods hold it");
    *cluster.world.group_mut(1) = ObservedGroup::Missing;
    cluster.settle();
    assert_eq!(cluster.num_replicas(), 2);
}
