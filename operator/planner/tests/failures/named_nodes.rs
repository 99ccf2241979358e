//! Pods that exclude nodes which are deleted or healthy again: Karpenter creates no node for such pods.

use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, DeleteReason, Plan, Pod};

/// Two workers train; the replacement of the second one names its lost node, and the scheduler finds no node for it.
fn waits() -> World {
    let mut world = world(2);
    world.job.min_replicas = 1;
    let mut world = world.training();
    for at in 0..2 {
        world.is_on(at, &format!("n{at}"));
    }
    world.lingering = true;
    world.is_unreachable(1, true);
    world.seconds_pass(61);
    world.settle();
    let replacement = world.observed.pods.last_mut().unwrap();
    assert_eq!(replacement.attempt, 1);
    names(replacement, &["n1"]);
    replacement.unschedulable = Some("0/1 nodes are available".to_owned());
    world
}

/// The operator has kept a pod from nodes by their names.
fn names(pod: &mut Pod, nodes: &[&str]) {
    let built_from = pod.built_from.as_mut().unwrap();
    built_from.named_nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
}

fn replaces(plan: &Plan) -> bool {
    let mut actions = plan.actions.iter();
    actions.any(|action| {
        matches!(action, Action::DeletePod { pod, reason: DeleteReason::Replaced, .. } if pod == "digits-worker-1-1")
    })
}

#[test]
fn a_pod_that_names_a_node_in_vain_is_made_again_without_it() {
    let mut world = waits();
    world.seconds_pass(3_600);
    assert!(!replaces(&world.plan()), "the node is still lost");
    // Its Node object is deleted, and Kubernetes deletes its pods.
    world.observed.pods.retain(|pod| !pod.unreachable);
    let plan = world.plan();
    assert!(replaces(&plan), "{:?}", plan.actions);
    world.carry_out(&plan, usize::MAX);
    let made = world.observed.pods.last().unwrap();
    assert_eq!(made.attempt, 2);
    world.settle();
}

#[test]
fn it_is_given_the_time_in_which_an_autoscaler_makes_a_node() {
    let mut world = waits();
    world.observed.pods.retain(|pod| !pod.unreachable);
    let plan = world.plan();
    assert!(!replaces(&plan));
    let left = plan.requeue_after.unwrap();
    assert!(left.as_secs() > 200 && left.as_secs() <= 300, "{left:?}");
    world.seconds_pass(300);
    assert!(replaces(&world.plan()));
}

#[test]
fn a_pod_that_others_keep_from_nodes_is_not_made_again() {
    // The template and webhooks name nodes in each pod, also in one that is made again.
    let mut world = waits();
    world.observed.pods.retain(|pod| !pod.unreachable);
    names(world.observed.pods.last_mut().unwrap(), &[]);
    world.seconds_pass(3_600);
    assert!(!replaces(&world.plan()));
}
