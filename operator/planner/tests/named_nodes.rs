//! Pods that name nodes which are gone, or are back: Karpenter makes no node for a pod that names one.
#![allow(missing_docs, clippy::unwrap_used)]

use roundhouse_planner::testing::{World, raw_job, world, world_of};
use roundhouse_planner::{Action, DeleteReason, Plan};
use serde_json::json;

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
    replacement.kept_from = vec!["n1".to_owned()];
    replacement.unschedulable = Some("0/1 nodes are available".to_owned());
    world
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
    assert_eq!((made.attempt, made.kept_from.len()), (2, 0));
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
fn nodes_that_the_template_names_stay_named() {
    let mut raw = raw_job(1);
    let template = json!({"spec": {"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "NotIn", "values": ["n7"]}]}]}}}}});
    raw.spec.workers.template = Some(serde_json::from_value(template).unwrap());
    let mut world = world_of(&raw);
    world.settle();
    let pod = &mut world.observed.pods[0];
    pod.kept_from = vec!["n7".to_owned()];
    pod.unschedulable = Some("0/1 nodes are available".to_owned());
    world.seconds_pass(3_600);
    let plan = world.plan();
    assert!(plan.actions.is_empty(), "{:?}", plan.actions);
}
