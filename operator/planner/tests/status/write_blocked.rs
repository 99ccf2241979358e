//! Writes that the API server refuses, in the status.

use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{WriteBlocked, plan_refused};

#[test]
fn refusal_is_one_event() {
    let mut world = world(1);
    let no = WriteBlocked::Refused("no".to_owned());
    let refused =
        |world: &World| plan_refused(&world.plan(), &world.observed.status, &no, world.now);
    let first = refused(&world);
    assert_eq!(first.status.front().unwrap().reason, "Refused");
    let about =
        |plan: &roundhouse_planner::Plan| plan.events.iter().any(|event| event.reason == "Refused");
    assert!(about(&first));
    world.observed.status = first.status;
    let second = refused(&world);
    assert!(!about(&second));
    assert_eq!(second.status, world.observed.status);
}

#[test]
fn refusal_is_read_in_any_order_of_conditions() {
    let mut world = world(2);
    world.settle();
    let words = WriteBlocked::Refused("exceeded quota".to_owned());
    let before = world.observed.status.clone();
    let mut status = plan_refused(&world.plan(), &before, &words, world.now).status;
    assert_eq!(status.state.as_deref(), Some("Refused"));
    for _ in 0..status.conditions.len() {
        status.conditions.rotate_left(1);
        assert_eq!(WriteBlocked::of(&status).as_ref(), Some(&words));
    }
}
