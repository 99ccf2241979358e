//! Copies of the state in the pods of replicas (`checkpoint.local`): each pod learns which one
//! holds its second copies, and nothing continues from an older state while a replica with a copy
//! is about to return.

use crate::cluster::Cluster;

/// A replica has trained, and another one that has never trained is ready beside it once its
/// containers have died.
fn newcomer_beside_a_broken_replica(has_peer_copies: bool, keeps: bool) -> Cluster {
    let mut cluster = Cluster::of(1, 0);
    if has_peer_copies {
        cluster.world.has_peer_copies();
    } else {
        cluster.world.saves(keeps);
    }
    cluster.settle();
    assert_eq!(cluster.world.observed.formed, Some(1));
    cluster.world.job.replicas = 2;
    cluster.step();
    cluster.step();
    cluster.kubelets_work();
    for name in ["digits-worker-0-0", "digits-worker-1-0"] {
        cluster.container_dies(name);
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

fn message(cluster: &Cluster) -> String {
    let status = cluster.world.observed.status.front().unwrap();
    status.message.clone()
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
    for has_peer_copies in [false, true] {
        let mut cluster = newcomer_beside_a_broken_replica(has_peer_copies, true);
        assert_eq!(cluster.world.generation(), 1);
        let message = message(&cluster);
        assert!(message.contains("keeps a copy"), "{message}");
        cluster.settle();
        assert_eq!(cluster.world.generation(), 2);
        assert_eq!(cluster.num_replicas(), 2);
    }
}

#[test]
fn new_replica_does_not_wait_without_copies() {
    let cluster = newcomer_beside_a_broken_replica(false, false);
    assert_eq!(cluster.world.generation(), 2);
}

/// Another life of the replica was given its places and has not formed its generation.
#[test]
fn copy_is_remembered_beside_generations_that_never_form() {
    let mut cluster = newcomer_beside_a_broken_replica(false, true);
    for _ in 0..3 {
        cluster.settle();
        for name in ["digits-worker-0-0", "digits-worker-1-0"] {
            let pod = cluster.pod(name);
            let kept = pod.earlier.iter().map(|it| it.generation);
            assert!(kept.chain([1]).any(|it| it == 1));
        }
        cluster.container_dies("digits-worker-0-0");
    }
}
