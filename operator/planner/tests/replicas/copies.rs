//! Copies of the state in the pods of replicas (`checkpoint.local`): each pod learns which one
//! holds its second copies, and nothing continues from an older state while a replica with a copy
//! is about to return.

use crate::cluster::Cluster;

/// Which copies the pods of a job keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    None,
    Own,
    OfPeers,
}

/// What happens to one pod of the replica.
#[derive(Clone, Copy, Debug)]
enum OtherPod {
    Restarts,
    IsCreatedAgain,
    IsCutOff,
}

/// A replica has trained, and another one that has never trained is ready beside it once its
/// containers have died.
fn newcomer_beside_a_broken_replica(copies: Copies, other_pod: OtherPod) -> Cluster {
    let mut cluster = Cluster::of(1, 0);
    match copies {
        Copies::None => cluster.world.saves(false),
        Copies::Own => cluster.world.saves(true),
        Copies::OfPeers => cluster.world.has_peer_copies(),
    }
    cluster.settle();
    assert_eq!(cluster.world.observed.formed, Some(1));
    cluster.world.job.replicas = 2;
    cluster.step();
    cluster.step();
    cluster.kubelets_work();
    cluster.container_dies("digits-worker-0-0");
    match other_pod {
        OtherPod::Restarts => cluster.container_dies("digits-worker-1-0"),
        OtherPod::IsCreatedAgain => cluster.vanishes("digits-worker-1-0"),
        OtherPod::IsCutOff => cluster.is_cut_off("digits-worker-1-0", true),
    }
    for _ in 0..6 {
        for name in ["digits-worker-2-0", "digits-worker-3-0"] {
            cluster.agent_works(name);
        }
        cluster.world.seconds_pass(10);
        cluster.step();
    }
    assert!(cluster.pod("digits-worker-2-0").ready);
    cluster
}

#[test]
fn pods_on_other_nodes_hold_the_copies() {
    let mut cluster = Cluster::of(2, 0);
    cluster.world.has_peer_copies();
    cluster.settle();
    for name in ["digits-worker-0-0", "digits-worker-3-0"] {
        let place = cluster.pod(name).replica.as_ref().unwrap();
        assert_eq!(place.holders, [Some(1), Some(0)], "{name}");
    }
    let mut cluster = Cluster::of(1, 0);
    cluster.world.saves(true);
    cluster.settle();
    let place = cluster.pod("digits-worker-0-0").replica.as_ref();
    assert_eq!(place.unwrap().holders, []);
}

#[test]
fn new_replica_waits_for_the_one_with_a_copy() {
    for (copies, other_pod, waits) in [
        (Copies::Own, OtherPod::Restarts, true),
        (Copies::OfPeers, OtherPod::Restarts, true),
        // The pod that stays holds the part of the other one.
        (Copies::OfPeers, OtherPod::IsCreatedAgain, true),
        (Copies::OfPeers, OtherPod::IsCutOff, true),
        (Copies::Own, OtherPod::IsCreatedAgain, false),
        (Copies::None, OtherPod::Restarts, false),
    ] {
        let mut cluster = newcomer_beside_a_broken_replica(copies, other_pod);
        let found = cluster.world.generation() == 1;
        assert_eq!(found, waits, "{copies:?} {other_pod:?}");
        if waits {
            assert_eq!(cluster.world.state(), "Recovering");
            cluster.settle();
            assert_eq!(cluster.world.generation(), 2);
            assert_eq!(cluster.num_replicas(), 2);
        }
    }
}

/// Another life of the replica was given its places and has not formed its generation.
#[test]
fn copy_is_remembered_beside_generations_that_never_form() {
    let mut cluster = newcomer_beside_a_broken_replica(Copies::Own, OtherPod::Restarts);
    for _ in 0..3 {
        cluster.settle();
        let formed = cluster.world.observed.formed.unwrap();
        for name in ["digits-worker-0-0", "digits-worker-1-0"] {
            let pod = cluster.pod(name);
            let newest = pod.membership.as_ref().map(|it| it.generation);
            let mut kept = pod.earlier.iter().map(|it| it.generation).chain(newest);
            assert!(kept.any(|it| it == formed), "{name}: {:?}", pod.earlier);
        }
        cluster.container_dies("digits-worker-0-0");
    }
}

/// Two replicas lose a pod each, and new pods come at once. With copies, the processes that are
/// left keep their parts of the state.
#[test]
fn pods_with_all_parts_of_the_state_form_a_replica() {
    for (copies, lost, expected) in [
        (true, [1, 2], [0, 3]),
        (true, [0, 3], [2, 1]),
        // The same part is lost with both.
        (true, [1, 3], [0, 1]),
        (false, [1, 2], [0, 1]),
    ] {
        let mut cluster = Cluster::of(2, 0);
        cluster.world.saves(copies);
        cluster.settle();
        assert_eq!(cluster.world.observed.formed, Some(1));
        for pod in lost {
            let name = format!("digits-worker-{pod}-0");
            cluster.agents.remove(&cluster.pod(&name).uid.clone());
            cluster.world.vanishes(cluster.at(&name));
        }
        // The others have not noticed it yet.
        cluster.step();
        cluster.kubelets_work();
        cluster.step();
        cluster.settle();
        let mut names = Vec::new();
        for name in cluster.replica(0) {
            let index = name.split('-').nth(2).unwrap();
            names.push(index.parse::<u32>().unwrap());
        }
        assert_eq!(names, expected, "{copies} {lost:?}");
        assert_eq!(cluster.num_replicas(), 2);
    }
}

/// The node of two pods does not answer, and spares are ready. The pods that are left notice it one
/// after the other.
fn with_a_lost_node(num_lives: u32, noticed: [u32; 2], plans_between: u32) -> Cluster {
    let mut cluster = Cluster::of(2, 2);
    cluster.world.saves(true);
    cluster.settle();
    for life in 0..num_lives {
        cluster.world.observed.nonce = format!("{:032x}", 400 + life);
        cluster.process_dies("digits-worker-2-0");
        cluster.settle();
    }
    cluster.world.observed.nonce = format!("{:032x}", 500);
    cluster.is_cut_off("digits-worker-1-0", true);
    cluster.is_cut_off("digits-worker-2-0", true);
    cluster.step();
    let [first, second] = noticed;
    cluster.process_loses_peer(&format!("digits-worker-{first}-0"));
    for _ in 0..plans_between {
        cluster.step();
        cluster.agents_work();
    }
    cluster.process_loses_peer(&format!("digits-worker-{second}-0"));
    cluster
}

#[test]
fn parts_are_put_together_whichever_pod_notices_first() {
    for noticed in [[0, 3], [3, 0]] {
        for plans_between in 0..2 {
            let mut cluster = with_a_lost_node(0, noticed, plans_between);
            cluster.settle();
            let places = ["digits-worker-0-0", "digits-worker-3-0"];
            assert_eq!(cluster.replica(0), places, "{noticed:?} {plans_between}");
        }
    }
}

/// The pod on the lost node has a later life of the replica that spares form now.
#[test]
fn life_of_spares_counts_beside_that_of_a_lost_pod() {
    for num_lives in 0..3 {
        let mut cluster = with_a_lost_node(num_lives, [0, 3], 0);
        cluster.step();
        for round in 0..5 {
            cluster.world.observed.nonce = format!("{:032x}", 600 + round);
            cluster.world.seconds_pass(10);
            cluster.kubelets_work();
            cluster.agents_work();
            cluster.step();
        }
        assert_eq!(cluster.num_replicas(), 2, "{num_lives}");
    }
}

#[test]
fn pods_without_a_holder_are_reported() {
    let mut cluster = Cluster::of(1, 0);
    cluster.world.has_peer_copies();
    cluster.step();
    cluster.kubelets_work();
    for pod in &mut cluster.world.observed.pods {
        pod.node = Some("n0".to_owned());
    }
    cluster.settle();
    let message = cluster.message();
    let expected = "; 2 of 2 pods have no pod of their replica on another node";
    assert!(message.contains(expected), "{message}");
}
