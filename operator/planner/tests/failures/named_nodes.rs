//! Pods that exclude nodes which are deleted or healthy again: Karpenter creates no node for such
//! pods.

use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, DeleteReason, Plan, Pod};

/// Two workers train. The replacement of the second one excludes its lost node, and the scheduler
/// finds no node for it.
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

/// The operator has excluded nodes by name in a pod.
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
fn pod_with_needless_node_exclusion_is_created_again() {
    let mut world = waits();
    world.seconds_pass(3_600);
    assert!(!replaces(&world.plan()), "the node is still lost");
    // The Node object is deleted, and Kubernetes deletes its pods.
    world.observed.pods.retain(|pod| !pod.unreachable);
    let plan = world.plan();
    assert!(replaces(&plan), "{:?}", plan.actions);
    world.carry_out(&plan, usize::MAX);
    let made = world.observed.pods.last().unwrap();
    assert_eq!(made.attempt, 2);
    world.settle();
}

#[test]
fn recreation_waits_for_the_autoscaler() {
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
fn node_exclusions_of_others_do_not_recreate_a_pod() {
    // The template and webhooks name nodes in each pod, also in a pod that is created again.
    let mut world = waits();
    world.observed.pods.retain(|pod| !pod.unreachable);
    names(world.observed.pods.last_mut().unwrap(), &[]);
    world.seconds_pass(3_600);
    assert!(!replaces(&world.plan()));
}
