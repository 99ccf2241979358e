//! A worker whose agent does not answer although its node does.

use roundhouse_planner::{Action, DeleteReason, PlanReason};

use crate::{deleted, trains};

#[test]
fn frozen_worker_is_left_out_and_replaced_later() {
    let mut world = trains(3);
    world.observed.pods[1].node = Some("n1".into());
    world.seconds_pass(60);
    world.agent_is_silent(1, true);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.observed.status.membership.as_ref().unwrap().nodes, 2);
    let message = &world.observed.status.front().unwrap().message;
    assert!(
        message.contains("digits-worker-1-0: its agent does not answer"),
        "{message}"
    );
    let mut back = world.clone();
    back.agent_is_silent(1, false);
    assert_eq!(back.settle().reason, PlanReason::Training);
    assert_eq!(back.observed.status.membership.as_ref().unwrap().nodes, 3);
    world.seconds_pass(299);
    assert!(world.plan().actions.is_empty());
    world.seconds_pass(2);
    let plan = world.plan();
    let expected = ("digits-worker-1-0".to_owned(), DeleteReason::AgentSilent);
    assert_eq!(deleted(&plan), [expected]);
    let lost = plan.actions.into_iter().find_map(|it| match it {
        Action::CreateWorker { lost, .. } => Some(lost),
        _ => None,
    });
    assert!(lost.unwrap().is_empty(), "its node is sound");
}
