//! When the status shows a report of progress.

use std::time::Duration;

use roundhouse_contract::Progress;
use roundhouse_planner::ProgressSample;
use roundhouse_planner::testing::{World, world};

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

fn report(world: &mut World, step: u64, checkpoint: Option<u64>, error: Option<&str>) {
    world.seconds_pass(10);
    report_now(world, step, checkpoint, error);
}

fn report_now(world: &mut World, step: u64, checkpoint: Option<u64>, error: Option<&str>) {
    let (progress, at) = (progress(step, checkpoint, error), world.now);
    world.observed.progress = Some(ProgressSample { progress, at });
}

/// The step that the status shows.
fn shown(world: &World) -> u64 {
    world
        .observed
        .status
        .progress
        .as_ref()
        .unwrap()
        .progress
        .step
}

#[test]
fn many_jobs_show_progress_less_often_but_errors_at_once() {
    let mut world = world(2).training();
    world.observed.progress_interval = Some(Duration::from_secs(50));
    report(&mut world, 10, None, None);
    world.settle();
    for step in [20, 30, 40, 50] {
        report(&mut world, step, None, None);
        world.settle();
        assert_eq!(shown(&world), 10, "at step {step}");
    }
    report(&mut world, 60, None, None);
    world.settle();
    assert_eq!(shown(&world), 60);
    world.seconds_pass(1);
    report_now(&mut world, 61, None, Some("the volume is full"));
    world.settle();
    assert_eq!(shown(&world), 61);
}

/// The report of rank 0 at a step.
fn at_step(world: &World, step: u64) -> Progress {
    Progress {
        generation: world.generation(),
        step,
        repeated_steps: step / 10,
        ..Progress::default()
    }
}

#[test]
fn failed_job_shows_the_last_reported_step() {
    for (polled, left) in [(7, None), (7, Some(9)), (9, Some(7))] {
        let mut world = world(2).training();
        let sample = |world: &World, step| ProgressSample {
            progress: at_step(world, step),
            at: world.now,
        };
        world.observed.progress = Some(sample(&world, 5));
        world.settle();
        // Too soon after the last report to be shown while the job trains.
        world.seconds_pass(1);
        world.observed.progress = Some(sample(&world, polled));
        world.ends(0, 64, 7);
        if let Some(step) = left {
            let words = at_step(&world, step);
            world.has_reported(0, &words);
        }
        world.settle();
        assert_eq!(world.state(), "ConfigInvalid");
        let shown = world.observed.status.progress.as_ref().unwrap();
        let last = left.unwrap_or(0).max(polled);
        assert_eq!(shown.progress.step, last, "{polled} {left:?}");
    }
}
