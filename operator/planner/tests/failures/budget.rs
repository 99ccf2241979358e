//! What an incident charges against `backoffLimit`, with and without reported steps.

use roundhouse_contract::Progress;
use roundhouse_planner::ProgressSample;
use roundhouse_planner::testing::{World, script_world, world};

/// Longer than the time after which a generation counts as trained.
const LONG: i64 = 600;

const SHORT: i64 = 30;

/// The members lose each other although none of them exits.
fn peers_lost(world: &mut World) {
    world.is_ready(0, false);
    world.seconds_pass(2);
    world.settle();
    world.is_ready(0, true);
    world.settle();
}

/// Worker 0 is killed with its agent, which leaves no termination message.
fn killed_without_message(world: &mut World) {
    world.ends(0, 137, 0);
    let end = world.observed.pods[0].container.termination.as_mut();
    end.unwrap().message = None;
    comes_back(world);
}

/// A script that writes no progress fails.
fn script_fails(world: &mut World) {
    world.ends(0, 1, 0);
    let generation = world.generation();
    let end = world.observed.pods[0].container.termination.as_mut();
    end.unwrap().message.as_mut().unwrap().generation = generation;
    comes_back(world);
}

fn comes_back(world: &mut World) {
    world.settle();
    world.restarts(0);
    world.prepared(0);
    world.settle();
}

/// An incident in a job of two workers or of a script.
type Incident = fn(&mut World);

const INCIDENTS: [(&str, bool, Incident); 3] = [
    ("peers lost", false, peers_lost),
    ("killed without words", false, killed_without_message),
    ("a script fails", true, script_fails),
];

fn after_incidents(is_script: bool, seconds_between: i64, incident: Incident) -> World {
    let world = if is_script { script_world(2) } else { world(2) };
    let mut world = world.training();
    for _ in 0..=world.job.backoff_limit {
        world.seconds_pass(seconds_between);
        incident(&mut world);
    }
    world
}

#[test]
fn long_generation_without_reports_counts_as_progress() {
    for (name, is_script, incident) in INCIDENTS {
        let world = after_incidents(is_script, LONG, incident);
        assert_eq!(world.state(), "Training", "{name}");
        let incidents = &world.observed.status.incidents;
        let expected = (world.job.backoff_limit + 1, 1);
        assert_eq!(
            (incidents.total, incidents.since_progress),
            expected,
            "{name}"
        );
    }
}

#[test]
fn short_generations_without_reports_fail_the_job() {
    for (name, is_script, incident) in INCIDENTS {
        let world = after_incidents(is_script, SHORT, incident);
        assert_eq!(world.state(), "BackoffLimitExceeded", "{name}");
    }
}

#[test]
fn long_generations_without_a_new_step_fail_the_job() {
    let mut world = world(2).training();
    for _ in 0..=world.job.backoff_limit + 1 {
        let progress = Progress {
            generation: world.generation(),
            step: 40,
            ..Progress::default()
        };
        let at = world.now;
        world.observed.progress = Some(ProgressSample { progress, at });
        world.seconds_pass(LONG);
        peers_lost(&mut world);
    }
    assert_eq!(world.state(), "BackoffLimitExceeded");
}

#[test]
fn reported_step_is_progress_before_the_status_shows_it() {
    let mut world = world(2).training();
    peers_lost(&mut world);
    for step in [5, 6] {
        let progress = Progress {
            generation: world.generation(),
            step,
            ..Progress::default()
        };
        let at = world.now;
        world.observed.progress = Some(ProgressSample { progress, at });
        world.settle();
        world.seconds_pass(9);
        killed_without_message(&mut world);
        let incidents = &world.observed.status.incidents;
        assert_eq!((incidents.since_progress, incidents.last_step), (1, step));
    }
}

#[test]
fn progress_resets_the_count_and_the_limit_fails_the_job() {
    let mut world = world(1).training();
    world.job.backoff_limit = 2;
    for (step, since) in [(10, 1), (10, 2), (20, 1), (20, 2)] {
        world.ends(0, 1, step);
        world.settle();
        assert_eq!(world.observed.status.incidents.since_progress, since);
        world.restarts(0);
        world.prepared(0);
        world.settle();
    }
    world.ends(0, 1, 20);
    world.settle();
    assert_eq!(world.state(), "BackoffLimitExceeded");
    assert!(
        world
            .observed
            .status
            .front()
            .unwrap()
            .message
            .contains("words")
    );
}

#[test]
fn repeatedly_broken_generations_fail_the_job() {
    let mut world = world(2).training();
    for _ in 0..=world.job.backoff_limit {
        world.seconds_pass(30);
        world.is_ready(0, false);
        world.seconds_pass(2);
        world.settle();
    }
    assert_eq!(world.state(), "BackoffLimitExceeded");
}
