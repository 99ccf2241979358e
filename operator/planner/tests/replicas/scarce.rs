//! Clusters with room for some of the pods only.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::{collection, proptest};
use roundhouse_api::TopologyMode;
use roundhouse_planner::PodPhase;

use super::cluster::{Cluster, SIZE};
use super::domains::pod;

impl Cluster {
    /// The first pod with this index gets a node in this rack, and starts.
    fn starts(&mut self, index: usize, rack: Option<&str>) {
        let (at, now) = (self.at(&pod(index)), self.world.now);
        let pod = &mut self.world.observed.pods[at];
        pod.node = Some(format!("n{index}"));
        pod.domain = rack.map(str::to_owned);
        pod.phase = PodPhase::Running;
        pod.ip = Some(format!("10.0.0.{}", pod.uid));
        pod.container.started_at = Some(now);
    }

    /// The operator plans when an object changes, and when its plans ask for it. No further pod
    /// gets a node in these seconds.
    fn seconds_without_room(&mut self, seconds: i64) {
        let until = self.world.now.as_second() + seconds;
        for round in 0.. {
            self.world.observed.nonce = format!("{round:016x}{until:016x}");
            self.agents_work();
            let before = self.world.observed.clone();
            let plan = self.step();
            let pods = &self.world.observed.pods;
            if *pods != before.pods || self.world.observed.status != before.status {
                assert!(round < 1_000, "nothing settles: {:?}", plan.actions);
                continue;
            }
            let left = until - self.world.now.as_second();
            let wanted = plan
                .requeue_after
                .and_then(|it| i64::try_from(it.as_secs()).ok());
            let next = wanted.map_or(left, |it| left.min(it + 1));
            if left <= 0 {
                return;
            }
            self.world.seconds_pass(next);
        }
    }

    /// How many replicas are in the newest generation, if there is one.
    fn num_training(&self) -> u32 {
        let newest = self.world.observed.status.membership.as_ref();
        newest.map_or(0, |newest| newest.nodes)
    }

    /// The pods with a place, and the life of each.
    fn lives(&self) -> BTreeSet<(String, String)> {
        let pods = self.world.observed.pods.iter();
        let places = pods.filter_map(|pod| Some((pod.uid.clone(), pod.replica.as_ref()?)));
        places
            .map(|(uid, place)| (uid, place.life.clone()))
            .collect()
    }
}

/// Two replicas of which one pod each has no room.
#[test]
fn running_pods_of_two_replicas_train_as_one() {
    let mut cluster = Cluster::of(2, 0);
    cluster.step();
    cluster.starts(0, None);
    cluster.seconds_without_room(5);
    cluster.starts(2, None);
    cluster.seconds_without_room(20);
    assert!(cluster.lives().is_empty(), "the others may come");
    cluster.seconds_without_room(20);
    // The first one waits no longer, and completes the replica of the second one.
    assert_eq!(cluster.replica(1), [pod(2), pod(0)]);
    assert_eq!(
        (cluster.world.state(), cluster.num_training()),
        ("Training", 1)
    );
    let lives = cluster.lives();
    // There is room for the others.
    cluster.starts(1, None);
    cluster.starts(3, None);
    cluster.seconds_without_room(5);
    assert_eq!(cluster.replica(0), [pod(3), pod(1)]);
    assert_eq!(cluster.num_training(), 2);
    assert!(lives.iter().all(|life| cluster.lives().contains(life)));
}

/// The pods of a new job start within seconds of each other.
#[test]
fn places_of_a_new_job_follow_the_indices() {
    for mode in [
        None,
        Some(TopologyMode::Preferred),
        Some(TopologyMode::Required),
    ] {
        let mut cluster = match mode {
            None => Cluster::of(2, 0),
            Some(mode) => Cluster::with_topology(2, 0, mode),
        };
        cluster.step();
        for index in [2, 0, 3, 1] {
            cluster.starts(index, mode.map(|_| "a"));
            cluster.seconds_without_room(5);
        }
        cluster.seconds_without_room(60);
        assert_eq!(cluster.replica(0), [pod(0), pod(1)], "{mode:?}");
        assert_eq!(cluster.replica(1), [pod(2), pod(3)], "{mode:?}");
    }
}

#[derive(Clone, Debug)]
struct Scarcity {
    replicas: u32,
    spares: u32,
    mode: Option<TopologyMode>,
    /// The rack of each replica, and then that of spares.
    racks: Vec<u8>,
    /// The pods that get a node, and the seconds until the next one does.
    starts: Vec<(usize, i64)>,
}

fn scarcities() -> impl Strategy<Value = Scarcity> {
    let mode = prop_oneof![
        Just(None),
        Just(Some(TopologyMode::Preferred)),
        Just(Some(TopologyMode::Required))
    ];
    let racks = collection::vec(0..2_u8, 5);
    let starts = (0..10_usize, prop_oneof![Just(0_i64), 1..40_i64]);
    let starts = collection::vec(starts, 1..10);
    (1..5_u32, 0..3_u32, mode, racks, starts).prop_map(|(replicas, spares, mode, racks, starts)| {
        Scarcity {
            replicas,
            spares,
            mode,
            racks,
            starts,
        }
    })
}

/// Whatever pods of a new job run, they soon make as many replicas as they can, and keep them.
fn running_pods_make_replicas(scarcity: &Scarcity) {
    let Scarcity {
        replicas,
        spares,
        mode,
        racks,
        starts,
    } = scarcity;
    let mut cluster = match mode {
        None => Cluster::of(*replicas, *spares),
        Some(mode) => Cluster::with_topology(*replicas, *spares, *mode),
    };
    cluster.step();
    let num_pods = (replicas * SIZE + spares) as usize;
    let rack_of = |index: usize| {
        let replica = (index / SIZE as usize).min(*replicas as usize);
        racks[replica.min(4)]
    };
    let (mut running, mut in_racks) = (BTreeSet::new(), BTreeMap::<u8, u32>::new());
    for (index, seconds) in starts {
        if *index < num_pods && running.insert(*index) {
            let rack = rack_of(*index);
            *in_racks.entry(rack).or_default() += 1;
            let rack = format!("rack-{rack}");
            cluster.starts(*index, mode.map(|_| rack.as_str()));
        }
        cluster.seconds_without_room(*seconds);
    }
    cluster.seconds_without_room(40);
    let can_be = if *mode == Some(TopologyMode::Required) {
        in_racks.values().map(|num| num / SIZE).sum()
    } else {
        in_racks.values().sum::<u32>() / SIZE
    };
    let can_be = can_be.min(*replicas);
    let lives = cluster.lives();
    assert_eq!(lives.len(), (can_be * SIZE) as usize, "{lives:?}");
    cluster.seconds_without_room(400);
    assert_eq!(
        (cluster.lives(), cluster.num_training()),
        (lives.clone(), can_be)
    );
    // There is room for all. The operator has created some again.
    for round in 0..10 {
        cluster.world.observed.nonce = format!("{round:030x}ff");
        cluster.world.seconds_pass(400);
        cluster.settle();
    }
    assert_eq!(cluster.num_training(), *replicas);
    let kept = cluster.lives();
    assert!(
        lives.iter().all(|life| kept.contains(life)),
        "{lives:?} {kept:?}"
    );
    assert_eq!(cluster.world.observed.pods.len(), num_pods);
}

proptest! {
    #[test]
    fn replicas_of_scarce_clusters_are_whole(scarcity in scarcities()) {
        running_pods_make_replicas(&scarcity);
    }
}
