//! Nodes that a job avoids.

use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, DeleteReason, PlanReason};

use crate::trains;

fn avoided(world: &World) -> Vec<&str> {
    let nodes = &world.observed.status.avoid_nodes;
    nodes.iter().map(|node| node.node.as_str()).collect()
}

#[test]
fn hardware_fault_moves_the_worker_to_another_node() {
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
        replica: None,
        gang: 0,
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
fn worker_that_restarts_on_a_bad_node_stays_out() {
    let mut world = trains();
    world.lingering = true;
    world.ends(1, 77, 40);
    world.restarts(1);
    world.prepared(1);
    world.settle();
    let of_bad = world.observed.pods[1].membership.as_ref().unwrap();
    assert_eq!(
        of_bad.generation, 1,
        "later generations only ask it to leave"
    );
    assert!(world.observed.pods[1].deleting);
}

#[test]
fn pod_waiting_for_an_avoided_node_is_created_again() {
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
fn pod_unschedulable_after_the_expiry_is_created_again() {
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
fn number_of_avoided_nodes_is_limited() {
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
fn admission_error_of_devices_avoids_the_node() {
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
