//! Rollback of the operator: the memberships have a protocol that this version does not know.

use roundhouse_api::{ConditionType, TrainingJobStatus};
use roundhouse_planner::testing::{World, script_world, world};
use roundhouse_planner::{Plan, PlanReason};

/// Pods as a version sees them that does not know the protocol of their memberships.
fn issued_by_a_newer_operator(mut world: World) -> World {
    for pod in &mut world.observed.pods {
        (pod.membership, pod.newer_protocol) = (None, Some(9));
    }
    world
}

fn says_so(plan: &Plan) -> bool {
    let conditions = plan.status.conditions.iter();
    let mut words = conditions.map(|condition| condition.message.as_str());
    words.all(|message| message.contains("protocol 9") && message.contains("knows protocol 1"))
}

#[test]
fn job_of_a_newer_operator_is_left_alone() {
    for trains in [world(2).training(), script_world(2).training()] {
        let mut world = issued_by_a_newer_operator(trains);
        let before = world.observed.clone();
        let first = world.plan();
        assert_eq!(first.reason, PlanReason::NotAccepted);
        assert_eq!(first.actions, []);
        assert_eq!(first.events.len(), 1);
        assert!(says_so(&first), "{:#?}", first.status.conditions);
        assert!(first.status.is_true(ConditionType::Running), "it trains on");
        assert_eq!(first.status.membership, before.status.membership);
        assert_eq!(first.status.incidents, before.status.incidents);
        world.carry_out(&first, usize::MAX);
        world.seconds_pass(3_600);
        let again = world.plan();
        assert_eq!((again.events.len(), &again.status), (0, &first.status));
    }
}

#[test]
fn end_of_a_worker_stops_the_job_without_more_events() {
    let mut world = issued_by_a_newer_operator(world(3).training());
    world.settle();
    for (at, words) in [(1, "2 of 3 workers run"), (2, "1 of 3 workers run")] {
        world.ends(at, 137, 5);
        let plan = world.plan();
        assert_eq!((plan.actions.len(), plan.events.len()), (0, 0));
        let running = plan.status.condition(ConditionType::Running).unwrap();
        assert_eq!(running.status, "False");
        assert!(running.message.starts_with(words), "{}", running.message);
        assert!(says_so(&plan), "{:#?}", plan.status.conditions);
        world.carry_out(&plan, usize::MAX);
    }
    // The loss of a pod changes neither the message nor publishes another event.
    let before = world.observed.status.clone();
    world.vanishes(0);
    let plan = world.plan();
    assert_eq!((plan.actions.len(), plan.events.len()), (0, 0));
    let accepted = |status: &TrainingJobStatus| status.condition(ConditionType::Accepted).cloned();
    assert_eq!(accepted(&plan.status), accepted(&before));
    let running = plan.status.condition(ConditionType::Running).unwrap();
    assert!(
        running.message.starts_with("0 of 2 workers run"),
        "{}",
        running.message
    );
}

#[test]
fn waiting_job_of_a_newer_operator_says_why() {
    let mut world = world(3).training();
    world.vanishes(2);
    world.settle();
    let world = issued_by_a_newer_operator(world);
    let plan = world.plan();
    assert_eq!(plan.actions, []);
    assert!(says_so(&plan));
    assert_eq!(plan.status.state.as_deref(), Some("NewerProtocol"));
}

#[test]
fn newer_operator_continues_the_job() {
    let trains = world(2).training();
    let documents: Vec<_> = trains.observed.pods.clone();
    let mut world = issued_by_a_newer_operator(trains);
    world.settle();
    world.observed.pods = documents;
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert!(world.observed.status.is_true(ConditionType::Accepted));
    assert_eq!(world.state(), "Training");
    assert_eq!(world.generations(), [1, 1]);
}

#[test]
fn resumed_job_continues_with_this_version() {
    let mut world = issued_by_a_newer_operator(world(2).training());
    world.settle();
    world.job.suspend = true;
    assert_eq!(world.settle().reason, PlanReason::Suspended);
    assert!(world.observed.pods.is_empty());
    world.job.suspend = false;
    let mut world = world.lobby();
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generations(), [2, 2]);
}
