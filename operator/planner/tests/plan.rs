//! Which plans cannot be undone.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use roundhouse_planner::testing::{World, world};

const DEADLINE: i64 = 600;

/// Two workers are created and not ready; the job must start within [`DEADLINE`] seconds.
fn starting() -> World {
    let mut world = world(2);
    world.job.start_deadline = Some(Duration::from_secs(DEADLINE.unsigned_abs()));
    world.settle();
    world
}

#[test]
fn deletions_incidents_and_ends_are_irrevocable() {
    let is_irrevocable = |world: &World| {
        let before = &world.observed.status;
        world.plan().is_irrevocable(before)
    };
    assert!(!is_irrevocable(&world(2)), "pods are created");
    let training = starting().training();
    assert!(!is_irrevocable(&training));
    let mut suspended = training.clone();
    suspended.job.suspend = true;
    assert!(is_irrevocable(&suspended), "pods are deleted");
    let mut failed = training.clone();
    failed.ends(0, 1, 3);
    assert!(is_irrevocable(&failed), "an incident is counted");
    let mut late = starting();
    late.seconds_pass(DEADLINE + 1);
    late.observed.fresh = true;
    assert!(is_irrevocable(&late), "the job ends");
    let mut completed = world(2).training();
    completed.ends(0, 0, 100);
    assert!(is_irrevocable(&completed), "a completion is stored");
    let stores = completed.plan();
    completed.carry_out(&stores, usize::MAX);
    assert!(!completed.observed.status.is_terminal());
    assert!(!is_irrevocable(&completed), "it is stored already");
}
