//! A deleted job that still exists.

use roundhouse_planner::testing::world;

#[test]
fn deleted_job_is_left_to_the_garbage_collector() {
    let mut world = world(2).training();
    world.job.deleting = true;
    world.vanishes(0);
    let plan = world.plan();
    assert!(plan.actions.is_empty() && plan.events.is_empty());
    world.carry_out(&plan, usize::MAX);
    assert_eq!(world.plan().status, world.observed.status, "reported once");
}

#[test]
fn deleted_job_names_its_finalizers() {
    for (finalizers, words) in [
        (&["foregroundDeletion"][..], "its pods first"),
        (
            &["example.com/audit", "foregroundDeletion"],
            "example.com/audit",
        ),
    ] {
        let mut world = world(2).training();
        world.job.deleting = true;
        world.job.finalizers = finalizers.iter().map(|it| (*it).to_owned()).collect();
        world.settle();
        let front = world.observed.status.front().unwrap();
        assert_eq!((world.state(), &*front.status), ("Deleting", "True"));
        assert!(front.message.contains(words), "{}", front.message);
    }
    let mut world = world(1);
    world.job.deleting = true;
    world.settle();
    assert_eq!(world.observed.status.front().unwrap().status, "False");
}
