//! When the processes of a replica start together.

use roundhouse_planner::Action;

use super::cluster::Cluster;

fn places(actions: &[Action]) -> Vec<&str> {
    let places = actions.iter().filter_map(|action| match action {
        Action::PlaceInReplica { pod, .. } => Some(pod.as_str()),
        _ => None,
    });
    places.collect()
}

#[test]
fn life_that_half_of_the_pods_received_is_replaced() {
    let mut cluster = Cluster::of(1, 0);
    cluster.step();
    cluster.kubelets_work();
    let plan = loop {
        let plan = cluster.world.plan();
        if !places(&plan.actions).is_empty() {
            break plan;
        }
        cluster.world.carry_out(&plan, usize::MAX);
    };
    // The operator stops after the first write.
    let first = plan
        .actions
        .iter()
        .position(|it| matches!(it, Action::PlaceInReplica { .. }));
    cluster.world.act(&plan.actions[first.unwrap()]);
    cluster.agents_work();
    cluster.world.observed.nonce = "1".repeat(32);
    cluster.settle();
    assert_eq!(cluster.world.state(), "Training");
    let place = |name: &str| cluster.pod(name).replica.clone().unwrap();
    let (one, other) = (place("digits-worker-0-0"), place("digits-worker-1-0"));
    assert_eq!((&one.life, one.number), (&other.life, 2));
}

#[test]
fn running_life_is_left_alone() {
    let mut cluster = Cluster::training(2, 1);
    for _ in 0..5 {
        cluster.world.seconds_pass(100);
        cluster.world.observed.nonce = "2".repeat(32);
        assert_eq!(places(&cluster.step().actions), Vec::<&str>::new());
    }
}

#[test]
fn container_that_waits_gets_no_life() {
    let mut cluster = Cluster::training(2, 0);
    cluster.container_dies("digits-worker-0-0");
    let at = cluster.at("digits-worker-0-0");
    cluster.world.waits(at, "CrashLoopBackOff");
    for _ in 0..10 {
        assert!(places(&cluster.step().actions).is_empty());
        cluster.agents_work();
    }
    cluster.world.restarts(at);
    cluster.settle();
    assert_eq!(cluster.num_replicas(), 2);
}

#[test]
fn life_that_pods_may_still_have_trains_beside_no_other() {
    let mut cluster = Cluster::training(1, 2);
    // A probe of the first pod fails, and the second one is out of touch: a spare takes its place.
    cluster.is_cut_off("digits-worker-1-0", true);
    let first = cluster.at("digits-worker-0-0");
    cluster.world.is_ready(first, false);
    while cluster.replica(0) != ["digits-worker-0-0", "digits-worker-2-0"] {
        cluster.step();
    }
    // The first pod is cut off before it receives its next life, and another spare takes its place.
    cluster.is_cut_off("digits-worker-0-0", true);
    cluster.settle();
    assert_eq!(
        cluster.replica(0),
        ["digits-worker-3-0", "digits-worker-2-0"]
    );
    assert!(cluster.pod("digits-worker-3-0").ready, "it could train");
    assert_eq!((cluster.world.generation(), cluster.formed()), (1, vec![1]));
    // When the first pod answers again, its agent ends the former life.
    cluster.is_cut_off("digits-worker-0-0", false);
    cluster.is_cut_off("digits-worker-1-0", false);
    cluster.settle();
    assert_eq!((cluster.world.generation(), cluster.formed()), (2, vec![2]));
}

#[test]
fn place_that_does_not_arrive_is_written_again() {
    let mut cluster = Cluster::of(1, 0);
    cluster.step();
    cluster.kubelets_work();
    while cluster.replica(0).is_empty() {
        cluster.step();
    }
    let mut number = 0;
    for second in 1..=120 {
        cluster.world.seconds_pass(1);
        let plan = cluster.step();
        let written = places(&plan.actions);
        number += written.len();
        if let [5 | 15 | 35 | 75] = [second] {
            assert_eq!(
                written,
                ["digits-worker-0-0", "digits-worker-1-0"],
                "{second}"
            );
        }
    }
    assert_eq!(number, 8, "the kubelet has read it by itself");
    cluster.settle();
    assert_eq!(cluster.world.state(), "Training");
    let place = cluster.pod("digits-worker-0-0").replica.clone().unwrap();
    assert_eq!((place.number, place.repeats), (1, 4), "it is the same life");
}
