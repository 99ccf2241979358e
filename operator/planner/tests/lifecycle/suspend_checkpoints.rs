//! What a suspended job reports about its checkpoints.

use roundhouse_api::{Checkpoint, CheckpointVolume};
use roundhouse_contract::Progress;
use roundhouse_planner::ProgressSample;
use roundhouse_planner::testing::{World, world};

/// A job whose two workers train.
fn trains() -> World {
    world(2).training()
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        volume: CheckpointVolume::default(),
        every_steps: None,
        every_seconds: None,
        keep: 3,
        best: None,
        local: None,
    }
}

fn report(world: &mut World, step: u64, checkpoint: Option<u64>, error: Option<&str>) {
    world.seconds_pass(10);
    report_now(world, step, checkpoint, error);
}

fn report_now(world: &mut World, step: u64, checkpoint: Option<u64>, error: Option<&str>) {
    let (progress, at) = (progress(step, checkpoint, error), world.now);
    world.observed.progress = Some(ProgressSample { progress, at });
}

fn progress(step: u64, checkpoint: Option<u64>, error: Option<&str>) -> Progress {
    Progress {
        generation: 1,
        step,
        total_steps: 100,
        checkpoint_step: checkpoint,
        checkpoint_at: checkpoint.map(|_| "1970-01-01T00:00:07.5Z".to_owned()),
        checkpoint_error: error.map(str::to_owned),
        ..Progress::default()
    }
}

/// The job is suspended and both workers leave after 70 steps. Only the worker `reporter` reports
/// the result of the last save.
fn both_leave(world: &mut World, reporter: usize, saved: Option<u64>, error: Option<&str>) {
    (world.lingering, world.job.suspend) = (true, true);
    world.settle();
    for at in 0..2 {
        let reports = at == reporter;
        let words = progress(70, saved.filter(|_| reports), error.filter(|_| reports));
        world.ends(at, 143, 70);
        world.has_reported(at, &words);
    }
    world.settle();
}

fn message(world: &World) -> &str {
    &world.observed.status.front().unwrap().message
}

#[test]
fn suspension_has_an_event_at_start_and_at_end() {
    let mut world = trains();
    world.job.checkpoint = Some(checkpoint());
    report(&mut world, 50, Some(40), None);
    world.settle();
    (world.lingering, world.job.suspend) = (true, true);
    assert_eq!(world.plan().events.len(), 1);
    world.settle();
    for still in [2, 1] {
        assert_eq!(world.observed.pods.len(), still);
        assert!(world.plan().events.is_empty(), "{still} still leave");
        world.vanishes(0);
    }
    let plan = world.plan();
    assert_eq!(plan.events.len(), 1);
    let all_gone = &plan.events[0].message;
    assert!(all_gone.starts_with("no workers") && all_gone.contains("40 steps"));
    world.settle();
    assert!(world.plan().events.is_empty(), "once");
    (world.lingering, world.job.suspend) = (false, false);
    let resumed = world.plan();
    assert!(resumed.events[0].message.contains("40 steps"));
}

#[test]
fn last_save_is_known_from_any_worker() {
    for saver in [0, 1] {
        let mut world = trains();
        world.job.checkpoint = Some(checkpoint());
        both_leave(&mut world, saver, Some(70), None);
        for _ in 0..2 {
            world.vanishes(0);
        }
        world.settle();
        assert!(message(&world).ends_with("70 steps"), "{}", message(&world));
    }
}

#[test]
fn failed_last_save_is_known_from_any_worker() {
    for reporter in [0, 1] {
        let mut world = trains();
        both_leave(&mut world, reporter, None, Some("no space left"));
        let shown = world.observed.status.checkpoint.as_ref().unwrap();
        assert_eq!(shown.error.as_deref(), Some("no space left"));
    }
}

#[test]
fn worker_that_never_leaves_does_not_hide_the_last_save() {
    let mut world = trains();
    world.job.checkpoint = Some(checkpoint());
    report(&mut world, 50, Some(40), None);
    (world.lingering, world.job.suspend) = (true, true);
    let plan = world.settle();
    world.vanishes(0);
    world.is_unreachable(0, true);
    assert!(plan.requeue_after.is_some(), "for the grace");
    let plan = world.settle();
    assert_eq!(world.observed.pods.len(), 1);
    assert!(
        message(&world).starts_with("no workers"),
        "{}",
        message(&world)
    );
    assert!(plan.requeue_after.is_none());
}

#[test]
fn suspended_job_names_its_resume_step() {
    let mut world = trains();
    world.job.suspend = true;
    world.settle();
    assert!(message(&world).contains("step 0"), "{}", message(&world));

    let mut world = trains();
    world.job.checkpoint = Some(checkpoint());
    report(&mut world, 50, Some(40), None);
    world.settle();
    world.job.suspend = true;
    world.settle();
    assert!(message(&world).contains("40 steps"), "{}", message(&world));
    assert!(world.observed.status.progress.is_some());
}

#[test]
fn suspended_job_names_unsaved_steps() {
    for (checkpoint_step, words) in [
        (Some(40), "holds 40 steps; steps 41 to 70 are not known"),
        (
            None,
            "no checkpoint is known yet; steps 1 to 70 are not known",
        ),
    ] {
        let mut world = trains();
        world.job.checkpoint = Some(checkpoint());
        report(&mut world, 50, checkpoint_step, None);
        world.settle();
        both_leave(&mut world, 0, None, Some("no space left"));
        for _ in 0..2 {
            world.vanishes(0);
        }
        world.settle();
        assert!(message(&world).contains(words), "{}", message(&world));
    }
}
