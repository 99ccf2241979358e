//! Which pod is which worker.

use roundhouse_planner::testing::world;
use roundhouse_planner::{Action, DeleteReason, Pod};

fn deletes(actions: &[Action]) -> Vec<(&str, DeleteReason)> {
    let deleted = |action| match action {
        &Action::DeletePod {
            ref pod, reason, ..
        } => Some((pod.as_str(), reason)),
        _ => None,
    };
    actions.iter().filter_map(deleted).collect()
}

#[test]
fn later_attempt_of_a_worker_stays() {
    let mut world = world(1).training();
    let later = Pod {
        name: "digits-worker-0-3".into(),
        uid: "x".into(),
        attempt: 3,
        ..world.observed.pods[0].clone()
    };
    world.observed.pods.push(later);
    let plan = world.plan();
    assert_eq!(
        deletes(&plan.actions),
        [("digits-worker-0-0", DeleteReason::Surplus)]
    );
}
