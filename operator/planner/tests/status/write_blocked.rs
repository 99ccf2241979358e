//! Writes that the API server refuses.

use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{WriteBlocked, plan_refused};

#[test]
fn what_the_api_server_refuses_is_told_once() {
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
fn what_was_refused_is_known_in_every_order_of_the_conditions() {
    let mut world = world(2);
    world.settle();
    let words = WriteBlocked::Refused("exceeded quota".to_owned());
    let before = world.observed.status.clone();
    let mut told = plan_refused(&world.plan(), &before, &words, world.now).status;
    assert_eq!(told.state.as_deref(), Some("Refused"));
    for _ in 0..told.conditions.len() {
        told.conditions.rotate_left(1);
        assert_eq!(WriteBlocked::told_in(&told).as_ref(), Some(&words));
    }
}
