//! Replacements of pods without a new step are limited; with new steps they are not.

mod property;

use roundhouse_contract::Progress;
use roundhouse_planner::testing::{World, script_world, world};
use roundhouse_planner::{Action, Plan, ProgressSample, WriteBlocked, plan_refused};

const MOST: u32 = 5;

/// How a pod is lost. None of these is an incident.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Evicted,
    Refused,
    Deleted,
    Vanishes,
    NodeLost,
}

const LOSSES: [Loss; 5] = [
    Loss::Evicted,
    Loss::Refused,
    Loss::Deleted,
    Loss::Vanishes,
    Loss::NodeLost,
];

fn lose(world: &mut World, at: usize, loss: Loss) {
    match loss {
        Loss::Evicted => {
            world.fails(at, "Evicted");
            world.observed.pods[at].disrupted = true;
        }
        Loss::Refused => world.fails(at, "OutOfcpu"),
        Loss::Deleted => world.is_deleted(at),
        Loss::Vanishes => world.vanishes(at),
        Loss::NodeLost => world.is_unreachable(at, true),
    }
}

fn prepare_all(world: &mut World) {
    for at in 0..world.observed.pods.len() {
        let pod = &world.observed.pods[at];
        if !pod.deleting && !pod.unreachable && !pod.ready && pod.failed.is_none() {
            world.prepared(at);
        }
    }
}

/// Carries out plans until they settle, for as long as the longest pause. Returns the
/// number of created pods.
fn settles(world: &mut World) -> usize {
    let made = |plan: &Plan| {
        let actions = plan.actions.iter();
        actions
            .filter(|it| matches!(it, Action::CreateWorker { .. }))
            .count()
    };
    let mut all = 0;
    for seconds in [1, 301, 301] {
        world.seconds_pass(seconds);
        for _ in 0..10 {
            let plan = world.plan();
            all += made(&plan);
            world.carry_out(&plan, usize::MAX);
        }
        // Deleted pods have terminated.
        world.observed.pods.retain(|pod| !pod.deleting);
    }
    all
}

fn reaches(world: &mut World, step: u64) {
    let progress = Progress {
        generation: world.generation(),
        step,
        ..Progress::default()
    };
    let at = world.now;
    world.observed.progress = Some(ProgressSample { progress, at });
}

fn limited(mut world: World) -> World {
    world.job.max_replacements = Some(MOST);
    world.training()
}

#[test]
fn replacements_without_a_new_step_fail_the_job() {
    for loss in LOSSES {
        let mut world = limited(world(2));
        reaches(&mut world, 7);
        for count in 0..=MOST {
            assert_eq!(world.observed.status.replacements.total, count, "{loss:?}");
            assert!(!world.observed.status.is_terminal(), "{loss:?}");
            let last = world.observed.pods.len() - 1;
            lose(&mut world, last, loss);
            settles(&mut world);
            prepare_all(&mut world);
        }
        settles(&mut world);
        assert_eq!(world.state(), "MaxReplacementsExceeded", "{loss:?}");
        let message = &world.observed.status.front().unwrap().message;
        assert!(message.contains("maxReplacements: 5"), "{message}");
        assert_eq!(world.observed.status.incidents.total, 0, "{loss:?}");
    }
}

#[test]
fn replacements_with_new_steps_are_unlimited() {
    for loss in LOSSES {
        let mut world = limited(world(2));
        for step in 1..50 {
            reaches(&mut world, step);
            let last = world.observed.pods.len() - 1;
            lose(&mut world, last, loss);
            settles(&mut world);
            prepare_all(&mut world);
            settles(&mut world);
            assert!(!world.observed.status.is_terminal(), "{loss:?} at {step}");
        }
        assert_eq!(world.observed.status.replacements.total, 49, "{loss:?}");
        assert_eq!(world.observed.status.replacements.since_progress, 1);
    }
}

#[test]
fn long_generations_of_a_silent_script_are_progress() {
    for (seconds, is_terminal) in [(600, false), (10, true)] {
        let mut world = limited(script_world(2));
        for _ in 0..20 {
            world.seconds_pass(seconds);
            if world.observed.status.is_terminal() {
                break;
            }
            world.is_deleted(1);
            for _ in 0..3 {
                world.settle();
                world.observed.pods.retain(|pod| !pod.deleting);
                prepare_all(&mut world);
            }
        }
        let status = &world.observed.status;
        assert_eq!(status.is_terminal(), is_terminal, "{seconds} s: {status:?}");
    }
}

#[test]
fn pods_of_start_scale_up_and_resume_are_no_replacements() {
    let mut world = limited(world(3));
    world.job.replicas = 8;
    world.settle();
    assert_eq!(world.observed.pods.len(), 8);
    world.job.suspend = true;
    world.settle();
    world.job.suspend = false;
    world.settle();
    assert_eq!(world.observed.pods.len(), 8);
    (world.job.replicas, world.job.min_replicas) = (2, 2);
    world.settle();
    world.job.replicas = 8;
    world.settle();
    assert_eq!(world.observed.pods.len(), 8);
    assert_eq!(world.observed.status.replacements.total, 0);
}

#[test]
fn scale_down_with_new_spares_is_no_replacement() {
    for (replicas, spares) in [(2, 2), (3, 4), (1, 3)] {
        let mut world = limited(world(4));
        (world.job.replicas, world.job.min_replicas) = (replicas, replicas);
        world.job.spares = spares;
        world.settle();
        prepare_all(&mut world);
        world.settle();
        let pods = replicas + spares;
        let replacements = &world.observed.status.replacements;
        assert_eq!((replacements.total, replacements.pods), (0, pods));
        // A lost pod still counts.
        world.vanishes(0);
        world.settle();
        assert_eq!(world.observed.status.replacements.total, 1);
    }
}

#[test]
fn repeatedly_refused_creation_counts_once() {
    let mut world = limited(world(2));
    lose(&mut world, 1, Loss::Evicted);
    let no = WriteBlocked::Refused("exceeded quota".to_owned());
    for _ in 0..3 * MOST {
        world.seconds_pass(301);
        let plan = world.plan();
        let refused = plan_refused(&plan, &world.observed.status, &no, world.now);
        // The pod to replace is deleted in any case.
        let deletes = plan
            .actions
            .iter()
            .filter(|it| matches!(it, Action::DeletePod { .. }));
        for action in deletes {
            assert!(world.act(action));
        }
        world.observed.status = refused.status;
    }
    assert_eq!(world.observed.pods.len(), 1);
    assert_eq!(world.observed.status.replacements.total, 1);
    assert_eq!(world.observed.status.replacements.pods, 1);
}

#[test]
fn repeatedly_refused_writes_are_no_replacements() {
    for workers in [2, 64] {
        let mut world = limited(world(workers));
        for at in 1..workers as usize {
            lose(&mut world, at, Loss::Evicted);
        }
        let no = WriteBlocked::Refused("the webhook does not answer".to_owned());
        for _ in 0..200 {
            world.seconds_pass(1);
            let plan = world.plan();
            let refused = plan_refused(&plan, &world.observed.status, &no, world.now);
            for stored in [plan.without_replacements().status, refused.status] {
                world.observed.status = stored;
                assert!(!world.observed.status.is_terminal());
                assert_eq!(world.observed.status.replacements.total, 0);
            }
        }
    }
}

#[test]
fn new_steps_count_when_the_limit_is_lowered() {
    let mut world = limited(world(3));
    world.job.max_replacements = Some(100);
    reaches(&mut world, 7);
    for _ in 0..10 {
        lose(&mut world, 2, Loss::Evicted);
        settles(&mut world);
        prepare_all(&mut world);
    }
    world.settle();
    assert!(world.observed.status.replacements.since_progress > MOST);
    reaches(&mut world, 8);
    world.job.max_replacements = Some(MOST);
    world.settle();
    assert!(
        !world.observed.status.is_terminal(),
        "{:?}",
        world.observed.status
    );
}

#[test]
fn new_run_resets_replacements() {
    let mut world = limited(world(2));
    reaches(&mut world, 1_000);
    for _ in 0..MOST {
        lose(&mut world, 1, Loss::Evicted);
        settles(&mut world);
        prepare_all(&mut world);
    }
    world.job.suspend = true;
    world.settle();
    world.observed.pods.clear();
    world.observed.progress = None;
    world.settle();
    world.job.suspend = false;
    world.settle();
    let replacements = &world.observed.status.replacements;
    assert_eq!(
        (replacements.since_progress, replacements.last_step),
        (0, 0)
    );
}

#[test]
fn pods_deleted_right_after_creation_count() {
    let mut world = limited(world(2));
    for _ in 0..=MOST {
        world.observed.pods.retain(|pod| pod.index != Some(1));
        let plan = world.plan();
        world.carry_out(&plan, usize::MAX);
    }
    world.settle();
    assert_eq!(world.state(), "MaxReplacementsExceeded");
}

#[test]
fn undisturbed_job_writes_no_counts() {
    let mut world = limited(world(3));
    world.settle();
    for _ in 0..10 {
        world.seconds_pass(60);
        assert_eq!(
            world.plan().status.replacements,
            world.observed.status.replacements
        );
    }
}
