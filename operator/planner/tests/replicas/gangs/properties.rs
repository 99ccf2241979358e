//! What holds for all gangs, without faults. With faults: see the properties of replicas.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{prop_assert, proptest};
use roundhouse_api::Gang;
use roundhouse_planner::{Action, Observed, ObservedGroup, Plan, Pod};

use super::super::cluster::{Cluster, SIZE};
use super::created;

/// With the pods of a plan, each gang that gets one of them has its minimum.
pub(crate) fn no_pod_is_created_into_a_gang_that_lacks_pods(seen: &Observed, plan: &Plan) {
    let created = created(plan);
    let gangs: BTreeSet<u32> = created.iter().map(|it| it.1).collect();
    let mut minimums = BTreeMap::new();
    for gang in &gangs {
        let other = seen.other_groups.get(gang).map(|it| &it.observed);
        let group = if *gang == 0 { Some(&seen.group) } else { other };
        if let Some(ObservedGroup::Ours { group, .. }) = group {
            minimums.insert(*gang, group.min_member);
        }
    }
    for action in &plan.actions {
        if let Action::ApplyPodGroup { number, group, .. } = action {
            minimums.insert(*number, group.min_member);
        }
    }
    for gang in gangs.iter().filter(|gang| minimums.contains_key(gang)) {
        let is_in_it = |pod: &&Pod| pod.gang == *gang && !pod.deleting;
        let mut indices: BTreeSet<u32> = seen
            .pods
            .iter()
            .filter(is_in_it)
            .filter_map(|pod| pod.index)
            .collect();
        indices.extend(created.iter().filter(|it| it.1 == *gang).map(|it| it.0));
        let minimum = minimums[gang] as usize;
        assert!(
            minimum <= indices.len(),
            "gang {gang} waits for {minimum}: {plan:?}"
        );
    }
}

proptest! {
    /// Without faults, the pods that have nodes are those of whole replicas, and spares.
    #[test]
    fn nodes_are_held_by_whole_replicas(
        replicas in 1..6_u32, spares in 0..3_u32, least in 1..4_u32, room in 0..16_usize,
    ) {
        let mut cluster = Cluster::of(replicas, spares).with_gang(Gang::Coscheduling);
        cluster.world.job.min_replicas = least.min(replicas);
        cluster.room = room;
        for _ in 0..30 {
            cluster.kubelets_work();
            cluster.agents_work();
            cluster.step();
            cluster.world.seconds_pass(10);
        }
        let trains = cluster.world.observed.status.membership.as_ref().map_or(0, |it| it.nodes);
        let beside = cluster.num_placed() - (trains * SIZE) as usize;
        prop_assert!(beside <= spares as usize, "{:?}", cluster.world.observed.pods);
    }
}
