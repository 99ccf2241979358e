//! How long an ended job is kept.

use std::time::Duration;

use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, Plan};

const TTL: u64 = 60;

/// A job that has succeeded or failed and is cleaned up.
fn ended(exit_code: i32) -> World {
    let mut world = world(1).training();
    world.ends(0, exit_code, 9);
    world.settle();
    assert!(world.observed.status.is_terminal());
    world.observed.resource_version = String::from("7");
    world
}

fn deletion(plan: &Plan) -> Option<(&str, &str)> {
    plan.actions.iter().find_map(|action| match action {
        Action::DeleteJob {
            uid,
            resource_version,
        } => Some((uid.as_str(), resource_version.as_str())),
        _ => None,
    })
}

#[test]
fn job_is_deleted_when_its_ttl_is_over() {
    for exit_code in [0, 64] {
        let mut world = ended(exit_code);
        assert_eq!(world.plan().requeue_after, None, "it stays");
        world.job.ttl_after_finished = Some(Duration::from_secs(TTL));
        world.seconds_pass(TTL.cast_signed() - 1);
        let plan = world.plan();
        let left = Some(Duration::from_secs(1));
        assert_eq!((deletion(&plan), plan.requeue_after), (None, left));
        assert!(!plan.needs_fresh && !plan.is_irrevocable(&world.observed.status));
        world.seconds_pass(1);
        let plan = world.plan();
        assert_eq!(deletion(&plan), Some(("job-uid", "7")));
        assert!(plan.is_irrevocable(&world.observed.status));
        assert_eq!(plan.status, world.observed.status, "nothing is written");
        world.carry_out(&plan, usize::MAX);
        assert!(world.plan().actions.is_empty(), "it is being deleted");
    }
}

#[test]
fn job_is_deleted_only_in_a_confirmed_state() {
    let mut world = ended(0);
    world.job.ttl_after_finished = Some(Duration::ZERO);
    world.observed.fresh = false;
    let plan = world.plan();
    assert!(plan.needs_fresh && plan.requeue_after.is_some());
    assert_eq!(deletion(&plan), None);
    // With a wrong clock no time is over, and the API server is not polled every few seconds.
    (world.observed.fresh, world.observed.clock_off) = (true, true);
    let plan = world.plan();
    assert!(plan.actions.is_empty() && plan.needs_fresh);
    assert!(
        plan.requeue_after
            .is_some_and(|after| after.as_secs() >= 60)
    );
    world.observed.clock_off = false;
    assert!(deletion(&world.plan()).is_some());
}

#[test]
fn running_job_is_never_deleted() {
    let mut world = world(1).training();
    world.job.ttl_after_finished = Some(Duration::ZERO);
    world.seconds_pass(1_000_000);
    assert_eq!(deletion(&world.settle()), None);
}

#[test]
fn rejected_job_is_deleted_when_its_ttl_is_over() {
    let mut world = ended(0);
    world.job.ttl_after_finished = Some(Duration::ZERO);
    world.is_rejected("spec.workers.replicas: must be at least 1");
    assert!(deletion(&world.plan()).is_some());
}
