//! Nodes that a job avoids.

use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, DeleteReason, PlanReason};

use crate::trains;

fn avoided(world: &World) -> Vec<&str> {
    let nodes = &world.observed.status.avoid_nodes;
    nodes.iter().map(|node| node.node.as_str()).collect()
}

#[test]
fn a_hardware_fault_is_an_incident_and_the_worker_comes_back_elsewhere() {
    let mut world = trains();
    world.ends(1, 77, 40);
    let first = world.plan();
    assert!(
        first.actions.is_empty(),
        "the node is stored before the pod is replaced"
    );
    world.carry_out(&first, usize::MAX);
    assert_eq!(avoided(&world), ["n1"]);
    let create = Action::CreateWorker {
        index: 1,
        attempt: 1,
        avoid: vec!["n1".to_owned()],
        lost: Vec::new(),
        built_like: world.observed.pods[0].built_from.clone(),
    };
    let then = world.plan();
    assert_eq!(then.actions[0], create);
    assert!(matches!(
        then.actions[1],
        Action::DeletePod {
            reason: DeleteReason::BadNode,
            ..
        }
    ));
    assert_eq!(world.settle().reason, PlanReason::Training);
    let status = &world.observed.status;
    assert_eq!(
        (
            status.incidents.total,
            status.membership.as_ref().unwrap().nodes
        ),
        (1, 2)
    );
    assert_eq!(status.avoid_nodes[0].reason, "HardwareFault");
}

#[test]
fn a_container_that_restarts_on_a_bad_node_is_not_taken_in_again() {
    let mut world = trains();
    world.lingering = true;
    world.ends(1, 77, 40);
    world.restarts(1);
    world.prepared(1);
    world.settle();
    let of_bad = world.observed.pods[1].membership.as_ref().unwrap();
    assert_eq!(
        of_bad.generation, 1,
        "it hears of no later generation but to leave"
    );
    assert!(world.observed.pods[1].deleting);
}

#[test]
fn a_node_is_avoided_for_a_while_and_a_pod_that_waited_for_it_is_made_anew() {
    let mut world = trains();
    world.ends(1, 77, 40);
    world.settle();
    let waiting = world.observed.pods.len() - 1;
    world.observed.pods[waiting].unschedulable = Some("no node left".into());
    let plan = world.settle();
    assert_eq!(plan.requeue_after, Some(world.job.avoid_node));
    world.seconds_pass(1_800);
    world.settle();
    assert!(avoided(&world).is_empty());
    let fresh = world.observed.pods.last().unwrap();
    assert_eq!((fresh.attempt, fresh.unschedulable.as_ref()), (2, None));
}

#[test]
fn a_pod_that_the_scheduler_gives_up_after_a_nodes_time_is_made_anew_too() {
    let mut world = trains();
    world.ends(1, 77, 40);
    world.settle();
    let waiting = world.observed.pods.len() - 1;
    world.seconds_pass(1_800);
    world.settle();
    assert_eq!(
        world.observed.pods[waiting].attempt, 1,
        "it may find a place"
    );
    world.observed.pods[waiting].unschedulable = Some("no node left".into());
    world.settle();
    assert!(avoided(&world).is_empty());
    assert_eq!(world.observed.pods.last().unwrap().attempt, 2);
}

#[test]
fn no_more_nodes_are_noted_than_the_status_has_room_for() {
    let mut world = world(80);
    world.settle();
    world.settle();
    for at in 0..80 {
        world.is_on(at, &format!("n{at}"));
        world.ends(at, 77, 0);
    }
    world.settle();
    assert_eq!(world.observed.status.avoid_nodes.len(), 64);
    let attempts = world.observed.pods.iter().filter(|pod| pod.attempt == 1);
    assert_eq!(attempts.count(), 80);
}

#[test]
fn a_node_that_refuses_a_pod_for_its_devices_is_avoided_and_no_incident() {
    let mut world = trains();
    world.fails(1, "UnexpectedAdmissionError");
    world.settle();
    assert_eq!(avoided(&world), ["n1"]);
    assert_eq!(world.observed.status.incidents.total, 0);
    let failure = world.observed.status.last_failure.as_ref().unwrap();
    assert_eq!(failure.reason, "UnexpectedAdmissionError");
    assert_eq!(
        (failure.node.as_deref(), failure.exit_code),
        (Some("n1"), None)
    );
}
