//! What a job waits for, in its conditions.

use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Processes, Waiting};

#[test]
fn changed_numbers_of_the_scheduler_change_no_status() {
    let mut world = world(3);
    world.settle();
    let words = |world: &mut World, words: &str| {
        world.observed.pods[1].unschedulable = Some(words.into());
        world.settle();
        world.observed.status.front().unwrap().message.clone()
    };
    let first = words(&mut world, "0/5 nodes are available: 3 Insufficient cpu");
    let same = words(&mut world, "0/6 nodes are available: 4 Insufficient cpu");
    assert_eq!(same, first);
    world.prepared(0);
    let ready = words(&mut world, "0/7 nodes are available: 5 Insufficient cpu");
    assert!(ready.starts_with("1 of 3 workers ready; "), "{ready}");
    assert!(ready.contains("3 Insufficient cpu"), "{ready}");
    let other = words(&mut world, "0/7 nodes are available: 7 had taints");
    assert!(other.contains("7 had taints"), "{other}");
}

#[test]
fn processes_that_prepare_first_have_not_failed() {
    let mut world = world(2);
    world.job.procs_per_worker = 2;
    world.settle();
    // A local run reports the processes of each worker that is not ready.
    world.observed.pods[0].processes = Some(Processes {
        are_preparing: true,
        ..Processes::default()
    });
    world.settle();
    let message = &world.observed.status.front().unwrap().message;
    assert!(!message.contains("failed"), "{message}");
    let mut world = world.training();
    world.process_dies(0, 137, 1, 40);
    world.settle();
    let message = &world.observed.status.front().unwrap().message;
    assert!(message.contains("restarting a failed process"), "{message}");
}

#[test]
fn image_pull_failure_has_the_message_of_the_kubelet() {
    let mut world = world(1);
    world.settle();
    let (reason, message) = ("ImagePullBackOff".to_owned(), "no such image".to_owned());
    world.observed.pods[0].container.waiting = Some(Waiting { reason, message });
    world.settle();
    assert_eq!(world.state(), "ImagePullFailed");
    let message = &world.observed.status.front().unwrap().message;
    assert!(
        message.ends_with("digits-worker-0-0: ImagePullBackOff: no such image"),
        "{message}"
    );
}
