//! What a suspended job reports about its checkpoints.

use roundhouse_api::{Checkpoint, CheckpointVolume};
use roundhouse_contract::Progress;
use roundhouse_planner::ProgressSample;
use roundhouse_planner::testing::{World, world};

/// Two workers train.
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
    }
}

fn told(world: &mut World, step: u64, checkpoint: Option<u64>, error: Option<&str>) {
    world.seconds_pass(10);
    told_now(world, step, checkpoint, error);
}

fn told_now(world: &mut World, step: u64, checkpoint: Option<u64>, error: Option<&str>) {
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

/// The job is suspended, and both workers leave after 70 steps; what came of the last save only one of them says.
fn both_leave(world: &mut World, teller: usize, saved: Option<u64>, error: Option<&str>) {
    (world.lingering, world.job.suspend) = (true, true);
    world.settle();
    for at in 0..2 {
        let tells = at == teller;
        let words = progress(70, saved.filter(|_| tells), error.filter(|_| tells));
        world.ends(at, 143, 70);
        world.has_reported(at, &words);
    }
    world.settle();
}

fn message(world: &World) -> &str {
    &world.observed.status.front().unwrap().message
}

#[test]
fn a_suspension_is_told_when_it_begins_and_when_all_have_left() {
    let mut world = trains();
    world.job.checkpoint = Some(checkpoint());
    told(&mut world, 50, Some(40), None);
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
fn what_was_saved_on_leaving_is_known_whichever_worker_says_it() {
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
fn why_nothing_was_saved_on_leaving_is_known_whichever_worker_says_it() {
    for teller in [0, 1] {
        let mut world = trains();
        both_leave(&mut world, teller, None, Some("no space left"));
        let shown = world.observed.status.checkpoint.as_ref().unwrap();
        assert_eq!(shown.error.as_deref(), Some("no space left"));
    }
}

#[test]
fn a_worker_that_never_goes_hides_nothing_of_what_was_saved() {
    let mut world = trains();
    world.job.checkpoint = Some(checkpoint());
    told(&mut world, 50, Some(40), None);
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
fn a_suspended_job_says_where_it_will_go_on() {
    let mut world = trains();
    world.job.suspend = true;
    world.settle();
    assert!(message(&world).contains("step 0"), "{}", message(&world));

    let mut world = trains();
    world.job.checkpoint = Some(checkpoint());
    told(&mut world, 50, Some(40), None);
    world.settle();
    world.job.suspend = true;
    world.settle();
    assert!(message(&world).contains("40 steps"), "{}", message(&world));
    assert!(world.observed.status.progress.is_some());
}

#[test]
fn a_suspended_job_names_the_steps_that_are_not_known_to_be_saved() {
    for (checkpoint_step, words) in [
        (Some(40), "holds 40 steps; steps 41 to 70 are not known"),
        (
            None,
            "no checkpoint is known yet; steps 1 to 70 are not known",
        ),
    ] {
        let mut world = trains();
        world.job.checkpoint = Some(checkpoint());
        told(&mut world, 50, checkpoint_step, None);
        world.settle();
        both_leave(&mut world, 0, None, Some("no space left"));
        for _ in 0..2 {
            world.vanishes(0);
        }
        world.settle();
        assert!(message(&world).contains(words), "{}", message(&world));
    }
}
