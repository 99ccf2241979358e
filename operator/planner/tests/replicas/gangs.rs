//! Gangs of replicas, with a gang scheduler that places what has room.

use std::collections::{BTreeMap, BTreeSet};

use roundhouse_api::Gang;
use roundhouse_planner::testing::World;
use roundhouse_planner::{Action, ObservedGroup, Plan, Pod, PodPhase};

use super::cluster::{Cluster, SIZE};

mod groups;
mod properties;

pub(crate) use properties::no_pod_is_created_into_a_gang_that_lacks_pods;

impl Cluster {
    /// The same with a gang scheduler.
    pub(crate) fn with_gang(mut self, gang: Gang) -> Self {
        self.world.job.scheduling.gang = gang;
        self
    }

    /// UIDs of the pods that the gang scheduler does not place. It places the pods of a gang while
    /// there is room, if the gang has its minimum then.
    pub(crate) fn that_wait_for_their_gang(&self) -> BTreeSet<String> {
        if self.world.job.scheduling.gang == Gang::None {
            return BTreeSet::new();
        }
        let has_ended = |pod: &Pod| matches!(pod.phase, PodPhase::Failed | PodPhase::Succeeded);
        let pods = || {
            self.world
                .observed
                .pods
                .iter()
                .filter(|pod| !has_ended(pod))
        };
        let mut room = self
            .room
            .saturating_sub(pods().filter(|pod| pod.node.is_some()).count());
        let mut gangs = BTreeMap::<u32, (usize, Vec<&Pod>)>::new();
        for pod in pods().filter(|pod| !pod.deleting) {
            let (placed, waiting) = gangs.entry(pod.gang).or_default();
            if pod.node.is_some() {
                *placed += 1;
            } else {
                waiting.push(pod);
            }
        }
        let mut left = BTreeSet::new();
        for (gang, (placed, waiting)) in gangs {
            let coming = waiting.len().min(room);
            let minimum = minimum(&self.world, gang).map(|it| it as usize);
            let coming = match minimum {
                Some(minimum) if placed + coming >= minimum => coming,
                Some(_) | None => 0,
            };
            room -= coming;
            left.extend(waiting[coming..].iter().map(|pod| pod.uid.clone()));
        }
        left
    }

    fn num_placed(&self) -> usize {
        let pods = self.world.observed.pods.iter();
        pods.filter(|pod| pod.node.is_some()).count()
    }

    /// The gang of a pod.
    fn gang_of(&self, name: &str) -> u32 {
        self.pod(name).gang
    }
}

/// The PodGroup of a gang.
fn group(world: &World, gang: u32) -> Option<&ObservedGroup> {
    let other = world.observed.other_groups.get(&gang);
    match gang {
        0 => Some(&world.observed.group),
        _ => other.map(|other| &other.observed),
    }
}

/// The minimum of the PodGroup of a gang, if it exists.
fn minimum(world: &World, gang: u32) -> Option<u32> {
    match group(world, gang) {
        Some(ObservedGroup::Ours { group, .. }) => Some(group.min_member),
        _ => None,
    }
}

/// The pods that a plan creates: their index and their gang.
fn created(plan: &Plan) -> Vec<(u32, u32)> {
    let created = plan.actions.iter().filter_map(|action| match action {
        Action::CreateWorker { index, gang, .. } => Some((*index, *gang)),
        _ => None,
    });
    created.collect()
}

/// Each gang of an unhurried job can reach its minimum with the pods that it has.
fn no_gang_waits_for_pods_that_do_not_exist(world: &World) {
    let pods = &world.observed.pods;
    let gangs: BTreeSet<u32> = pods.iter().map(|pod| pod.gang).collect();
    for gang in gangs {
        let number = pods
            .iter()
            .filter(|pod| pod.gang == gang && !pod.deleting)
            .count();
        let minimum = minimum(world, gang).unwrap() as usize;
        assert!(
            minimum <= number,
            "gang {gang} waits for {minimum} and has {number}: {pods:?}"
        );
    }
}

#[test]
fn further_replicas_are_gangs_of_their_own() {
    let mut cluster = Cluster::of(3, 1).with_gang(Gang::Coscheduling);
    let first = cluster.step();
    assert_eq!(
        created(&first),
        [(0, 0), (1, 0)],
        "what the job needs to train"
    );
    assert_eq!(minimum(&cluster.world, 0), Some(2));
    assert_eq!(created(&cluster.step()), [], "they have no nodes yet");
    cluster.kubelets_work();
    let then = cluster.step();
    assert_eq!(created(&then), [(2, 1), (3, 1), (4, 2), (5, 2), (6, 0)]);
    let position = |is: fn(&Action) -> bool| then.actions.iter().position(is).unwrap();
    let groups = then
        .actions
        .iter()
        .rposition(|it| matches!(it, Action::ApplyPodGroup { .. }));
    assert!(groups.unwrap() < position(|it| matches!(it, Action::CreateWorker { .. })));
    for gang in [1, 2] {
        assert_eq!(minimum(&cluster.world, gang), Some(SIZE));
    }
    cluster.settle();
    assert_eq!(
        (cluster.world.state(), cluster.num_replicas()),
        ("Training", 3)
    );
    no_gang_waits_for_pods_that_do_not_exist(&cluster.world);
}

/// Pods that were placed one by one would hold a fifth GPU, and no replica would use it.
#[test]
fn replicas_without_room_hold_no_node() {
    let mut cluster = Cluster::of(3, 0).with_gang(Gang::Coscheduling);
    cluster.room = 5;
    for _ in 0..30 {
        cluster.kubelets_work();
        cluster.agents_work();
        cluster.step();
        cluster.world.seconds_pass(10);
    }
    assert_eq!(cluster.num_placed(), 4);
    assert_eq!(
        (cluster.world.state(), cluster.num_replicas()),
        ("Training", 2)
    );
    assert_eq!(cluster.world.observed.pods.len(), 6);
    cluster.room = 6;
    for _ in 0..30 {
        cluster.kubelets_work();
        cluster.agents_work();
        cluster.step();
        cluster.world.seconds_pass(10);
    }
    assert_eq!(cluster.num_replicas(), 3);
}

/// A job that cannot train holds no nodes that others could use.
#[test]
fn further_gangs_wait_for_the_first_one() {
    let mut cluster = Cluster::of(3, 1).with_gang(Gang::Volcano);
    cluster.world.job.min_replicas = 2;
    cluster.room = 3;
    for _ in 0..10 {
        cluster.kubelets_work();
        cluster.step();
    }
    assert_eq!(cluster.num_placed(), 0);
    assert_eq!(cluster.world.observed.pods.len(), 4);
    assert_eq!(minimum(&cluster.world, 0), Some(4));
    assert!(cluster.world.observed.other_groups.is_empty());
    cluster.room = 7;
    cluster.settle();
    assert_eq!(cluster.world.observed.pods.len(), 7);
}

#[test]
fn replacement_joins_the_gang_of_the_pod_before() {
    for gang in [Gang::Coscheduling, Gang::Volcano, Gang::Kubernetes] {
        let mut cluster = Cluster::of(3, 0).with_gang(gang);
        cluster.settle();
        for (pod, replacement, gang) in [
            ("digits-worker-3-0", "digits-worker-3-0", 1),
            ("digits-worker-0-0", "digits-worker-0-0", 0),
            ("digits-worker-4-0", "digits-worker-4-0", 2),
        ] {
            cluster.vanishes(pod);
            cluster.settle();
            assert_eq!(cluster.gang_of(replacement), gang);
            assert_eq!(cluster.num_replicas(), 3);
        }
        // Both pods of a replica, and one of another one.
        for pod in [
            "digits-worker-2-0",
            "digits-worker-3-0",
            "digits-worker-5-0",
        ] {
            cluster.vanishes(pod);
        }
        cluster.settle();
        assert_eq!(cluster.num_replicas(), 3);
        assert_eq!(cluster.gang_of("digits-worker-5-0"), 2);
        let together = cluster.gang_of("digits-worker-2-0");
        assert_eq!(cluster.gang_of("digits-worker-3-0"), together);
        no_gang_waits_for_pods_that_do_not_exist(&cluster.world);
    }
}

#[test]
fn spare_that_took_a_place_is_replaced_in_the_first_gang() {
    let mut cluster = Cluster::of(2, 1).with_gang(Gang::Coscheduling);
    cluster.settle();
    cluster.vanishes("digits-worker-3-0");
    cluster.settle();
    assert_eq!(
        cluster.gang_of("digits-worker-3-0"),
        0,
        "the spare is in its place"
    );
    assert_eq!(cluster.num_replicas(), 2);
    assert_eq!(minimum(&cluster.world, 1), Some(1), "one pod is left in it");
    // It is complete again when its replica needs a pod.
    cluster.vanishes("digits-worker-4-0");
    cluster.vanishes("digits-worker-3-0");
    cluster.settle();
    assert_eq!(minimum(&cluster.world, 1), Some(2));
    assert_eq!(cluster.num_replicas(), 2);
}
