//! Committed steps that were lost and repeated: the status and the event.

use roundhouse_contract::{Progress, Repeat, RepeatSource};
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Plan, ProgressSample};

fn progress(step: u64, repeated: u64) -> Progress {
    Progress {
        generation: 1,
        step,
        total_steps: 100,
        repeated_steps: repeated,
        last_repeat: (repeated > 0).then_some(Repeat {
            first: 31,
            last: 42,
            after: 30,
            source: RepeatSource::Checkpoint,
            rank: None,
        }),
        ..Progress::default()
    }
}

/// Reports progress and plans the job at once.
fn report(world: &mut World, progress: Progress) -> Plan {
    world.seconds_pass(1);
    let at = world.now;
    world.observed.progress = Some(ProgressSample { progress, at });
    let plan = world.plan();
    world.settle();
    plan
}

fn shown(world: &World) -> Progress {
    world.observed.status.progress.clone().unwrap().progress
}

#[test]
fn repeated_steps_are_one_immediate_warning() {
    let mut world = world(2).training();
    assert!(report(&mut world, progress(30, 0)).events.is_empty());
    let plan = report(&mut world, progress(33, 12));
    let event = &plan.events[0];
    assert_eq!(event.reason, "StepsRepeated");
    assert_eq!(
        event.message,
        "12 committed steps (31-42) were lost and repeated: training continued from the checkpoint of step 30"
    );
    assert_eq!((shown(&world).repeated_steps, shown(&world).step), (12, 33));
    assert!(report(&mut world, progress(50, 12)).events.is_empty());
    let plan = report(&mut world, progress(60, 15));
    assert!(
        plan.events[0].message.starts_with("3 committed steps"),
        "{:?}",
        plan.events
    );
    assert!(
        plan.events[0]
            .message
            .ends_with("; 15 steps of this job in total")
    );
}

#[test]
fn new_rank_0_does_not_reset_repeated_steps() {
    let mut world = world(2).training();
    report(&mut world, progress(33, 12));
    world.seconds_pass(60);
    report(&mut world, progress(50, 0));
    assert_eq!((shown(&world).repeated_steps, shown(&world).step), (12, 50));
    assert!(shown(&world).last_repeat.is_some());
    assert!(report(&mut world, progress(51, 12)).events.is_empty());
}

#[test]
fn termination_message_reports_repeated_steps() {
    let mut world = world(2).training();
    // Only rank 0 knows the repeated steps.
    for (at, repeated) in [(0, 12), (1, 0)] {
        world.ends(at, 0, 100);
        world.has_reported(at, &progress(100, repeated));
    }
    let plan = world.plan();
    assert!(
        plan.events.iter().any(|it| it.reason == "StepsRepeated"),
        "{:?}",
        plan.events
    );
    world.settle();
    assert_eq!(shown(&world).repeated_steps, 12);
    assert!(world.plan().events.is_empty());
}
