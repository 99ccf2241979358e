//! A failure of one pod ends its replica and no other.

use super::cluster::Cluster;

#[test]
fn dead_process_costs_its_replica_one_generation() {
    let mut cluster = Cluster::training(2, 0);
    cluster.process_dies("digits-worker-1-0");
    cluster.step();
    cluster.step();
    cluster.step();
    let stays = cluster
        .pod("digits-worker-2-0")
        .membership
        .as_ref()
        .unwrap();
    assert_eq!(
        (stays.generation, stays.nodes),
        (2, 2),
        "the other replica trains on"
    );
    cluster.settle();
    let status = &cluster.world.observed.status;
    assert_eq!(
        (
            status.incidents.total,
            status.membership.as_ref().unwrap().nodes
        ),
        (1, 2)
    );
    let last = status.last_failure.as_ref().unwrap();
    assert_eq!(
        (&*last.worker, last.exit_code),
        ("digits-worker-1-0", Some(137))
    );
    let place = cluster.pod("digits-worker-0-0").replica.as_ref().unwrap();
    assert_eq!(place.number, 2);
    let other = cluster.pod("digits-worker-2-0").replica.as_ref().unwrap();
    assert_eq!(other.number, 1, "the other replica does not restart");
}

#[test]
fn dead_container_costs_its_replica_one_generation() {
    let mut cluster = Cluster::training(2, 0);
    cluster.container_dies("digits-worker-0-0");
    cluster.settle();
    let status = &cluster.world.observed.status;
    assert_eq!(
        (
            status.incidents.total,
            status.membership.as_ref().unwrap().nodes
        ),
        (1, 2)
    );
    assert_eq!(
        status.last_failure.as_ref().unwrap().worker,
        "digits-worker-0-0"
    );
    let place = cluster.pod("digits-worker-1-0").replica.as_ref().unwrap();
    assert_eq!(place.number, 2);
}

#[test]
fn whole_replica_that_dies_is_one_incident() {
    let mut cluster = Cluster::training(2, 0);
    cluster.process_dies("digits-worker-0-0");
    cluster.process_dies("digits-worker-1-0");
    cluster.settle();
    assert_eq!(cluster.world.observed.status.incidents.total, 1);
    assert_eq!(cluster.world.state(), "Training");
}

#[test]
fn only_replica_that_dies_begins_again() {
    let mut cluster = Cluster::training(1, 0);
    cluster.process_dies("digits-worker-0-0");
    cluster.settle();
    assert_eq!(cluster.world.state(), "Training");
    assert_eq!(cluster.world.observed.status.incidents.total, 1);
    assert_eq!(
        cluster
            .pod("digits-worker-1-0")
            .membership
            .as_ref()
            .unwrap()
            .generation,
        2
    );
}

#[test]
fn too_few_replicas_wait() {
    let mut cluster = Cluster::training(2, 0);
    cluster.world.job.min_replicas = 2;
    cluster.vanishes("digits-worker-0-0");
    cluster.step();
    cluster.step();
    assert_eq!(cluster.world.generation(), 1);
    cluster.settle();
    assert_eq!(cluster.num_replicas(), 2);
}

#[test]
fn pod_that_is_lost_takes_no_incident_of_its_sibling_along() {
    let mut cluster = Cluster::training(1, 0);
    cluster.world.job.backoff_limit = 0;
    cluster.vanishes("digits-worker-0-0");
    cluster.settle();
    assert_eq!(cluster.world.state(), "Training");
    assert_eq!(cluster.world.observed.status.incidents.total, 0);
}

#[test]
fn replica_has_completed_when_one_of_its_pods_has() {
    for container in [false, true] {
        let mut cluster = Cluster::training(1, 0);
        let at = cluster.at("digits-worker-1-0");
        cluster.world.ends(at, 0, 100);
        if container {
            cluster.container_dies("digits-worker-0-0");
            let at = cluster.at("digits-worker-0-0");
            cluster.world.restarts(at);
        } else {
            cluster.process_dies("digits-worker-0-0");
        }
        for _ in 0..5 {
            cluster.step();
        }
        assert_eq!(cluster.world.state(), "Completed", "{container}");
    }
}

#[test]
fn death_before_a_generation_is_issued_counts() {
    let mut cluster = Cluster::of(2, 0);
    while cluster.world.generation() == 0 {
        cluster.kubelets_work();
        cluster.agents_work();
        cluster.step();
    }
    // It was raised for both replicas, and no pod has received it.
    assert_eq!(cluster.world.generations(), [0; 4]);
    cluster.container_dies("digits-worker-1-0");
    cluster.settle();
    let status = &cluster.world.observed.status;
    assert_eq!(status.incidents.total, 1);
    assert_eq!(
        status.last_failure.as_ref().unwrap().worker,
        "digits-worker-1-0"
    );
    assert_eq!(status.membership.as_ref().unwrap().nodes, 2);
}

#[test]
fn message_names_the_pod_that_does_not_answer() {
    let mut cluster = Cluster::training(1, 0);
    cluster.is_cut_off("digits-worker-1-0", true);
    cluster.process_loses_peer("digits-worker-0-0");
    cluster.step();
    let message = cluster.message();
    let expected = "digits-worker-1-0: its node n1 does not answer";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn pod_that_runs_beside_a_missing_one_is_not_blamed() {
    let mut cluster = Cluster::training(1, 0);
    cluster.world.seconds_pass(600);
    cluster.vanishes("digits-worker-0-0");
    // The agent of the other pod has not answered yet.
    let at = cluster.at("digits-worker-1-0");
    let pod = &mut cluster.world.observed.pods[at];
    (pod.ready, pod.processes) = (false, None);
    let plan = cluster.world.plan();
    let condition = plan.status.front().unwrap();
    assert_eq!(condition.reason, "Recovering", "{}", condition.message);
}
