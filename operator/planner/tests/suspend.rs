//! Jobs that are suspended and resumed.
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Duration;

use roundhouse_api::{Checkpoint, CheckpointVolume, ConditionType};
use roundhouse_contract::Progress;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, DeleteReason, PlanReason, Presence, ProgressSample};

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
    }
}

fn told(world: &mut World, step: u64, checkpoint: Option<u64>, error: Option<&str>) {
    world.seconds_pass(10);
    told_now(world, step, checkpoint, error);
}

fn told_now(world: &mut World, step: u64, checkpoint: Option<u64>, error: Option<&str>) {
    let progress = Progress {
        generation: 1,
        step,
        total_steps: 100,
        checkpoint_step: checkpoint,
        checkpoint_at: checkpoint.map(|_| "1970-01-01T00:00:07.5Z".to_owned()),
        checkpoint_error: error.map(str::to_owned),
        ..Progress::default()
    };
    let at = world.now;
    world.observed.progress = Some(ProgressSample { progress, at });
}

fn message(world: &World) -> &str {
    &world.observed.status.conditions[0].message
}

#[test]
fn a_job_that_is_created_suspended_makes_nothing() {
    let mut world = world(2);
    world.job.suspend = true;
    let plan = world.settle();
    assert!(world.observed.pods.is_empty());
    assert_eq!(world.observed.service, Presence::Missing);
    assert_eq!(
        (plan.reason, plan.requeue_after),
        (PlanReason::Suspended, None)
    );
    let status = &world.observed.status;
    assert!(status.is_true(ConditionType::Accepted) && status.start_time.is_none());
    assert!(status.is_true(ConditionType::Suspended));
}

#[test]
fn suspension_asks_every_worker_to_leave_and_keeps_service_policy_and_number() {
    let mut world = trains();
    world.job.suspend = true;
    let plan = world.plan();
    let deleted = plan.actions.iter().filter(|action| {
        let reason = DeleteReason::Suspended;
        matches!(action, Action::DeletePod { reason: r, .. } if *r == reason)
    });
    assert_eq!((deleted.count(), plan.actions.len()), (2, 2));
    assert_eq!(world.settle().requeue_after, None);
    assert_eq!(world.state(), "Suspended");
    assert!(!world.observed.status.is_true(ConditionType::Running));
    assert_eq!(world.observed.service, Presence::Ours);
    assert_eq!(
        world
            .observed
            .status
            .membership
            .as_ref()
            .unwrap()
            .generation,
        1
    );
    assert_eq!(
        (
            world.observed.status.replicas,
            world.observed.status.incidents.total
        ),
        (0, 0)
    );
}

#[test]
fn workers_that_leave_a_suspended_job_are_no_incidents_however_they_end() {
    for code in [143, 137, 75, 64] {
        let mut world = trains();
        (world.lingering, world.job.suspend) = (true, true);
        world.settle();
        world.ends(0, code, 40);
        world.settle();
        world.vanishes(0);
        world.vanishes(0);
        world.job.suspend = false;
        world.settle();
        assert_eq!(world.observed.status.incidents.total, 0, "{code}");
        assert_eq!(world.state(), "WaitingForWorkers", "{code}");
    }
}

#[test]
fn a_resumed_job_has_fresh_workers_in_the_next_generation() {
    let mut world = trains();
    world.job.suspend = true;
    world.settle();
    world.job.suspend = false;
    world.settle();
    for at in 0..2 {
        world.prepared(at);
    }
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generations(), [2, 2]);
    assert!(!world.observed.status.is_true(ConditionType::Suspended));
}

#[test]
fn who_still_leaves_is_waited_for_until_its_grace_is_over() {
    let mut world = trains();
    (world.lingering, world.job.suspend) = (true, true);
    world.settle();
    world.job.suspend = false;
    let plan = world.settle();
    assert_eq!(plan.reason, PlanReason::Resuming);
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(30)));
    assert!(plan.actions.is_empty());
    let mut gone = world.clone();
    gone.vanishes(0);
    gone.vanishes(0);
    gone.settle();
    assert_eq!(gone.observed.pods.len(), 2);
    assert_eq!(gone.observed.pods[0].attempt, 0);
    let mut lost = world.clone();
    for at in 0..2 {
        lost.is_unreachable(at, true);
    }
    lost.settle();
    assert_eq!(
        lost.state(),
        "WaitingForWorkers",
        "a lost node is not waited for"
    );
    world.seconds_pass(30);
    world.settle();
    let fresh: Vec<_> = world
        .observed
        .pods
        .iter()
        .filter(|pod| !pod.deleting)
        .collect();
    assert_eq!(
        fresh.len(),
        2,
        "a pod that never goes does not hold the job up"
    );
    assert!(fresh.iter().all(|pod| pod.attempt == 1));
}

#[test]
fn an_operator_that_dies_in_the_midst_of_a_suspension_ends_it_the_next_time() {
    for writes in 0..2 {
        let mut world = trains();
        world.job.suspend = true;
        let plan = world.plan();
        world.carry_out(&plan, writes);
        world.settle();
        assert!(world.observed.pods.is_empty());
        assert_eq!(world.state(), "Suspended");
    }
}

#[test]
fn half_a_suspension_that_is_called_off_costs_the_rest_nothing() {
    let mut world = trains();
    world.job.min_replicas = 1;
    world.job.suspend = true;
    let plan = world.plan();
    world.carry_out(&plan, 1);
    world.job.suspend = false;
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.observed.status.incidents.total, 0);
}

#[test]
fn the_deadline_to_start_counts_anew_from_the_resumption() {
    let mut world = trains();
    world.job.suspend = true;
    world.settle();
    world.seconds_pass(10_000);
    world.job.suspend = false;
    let plan = world.settle();
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(600)));
    world.seconds_pass(600);
    world.settle();
    assert_eq!(world.state(), "StartDeadlineExceeded");
}

#[test]
fn time_in_suspension_does_not_count_as_active() {
    let mut world = trains();
    world.job.active_deadline = Some(Duration::from_secs(100));
    world.seconds_pass(60);
    world.job.suspend = true;
    world.settle();
    world.seconds_pass(10_000);
    assert_eq!(world.settle().requeue_after, None);
    world.job.suspend = false;
    world.settle();
    for at in 0..2 {
        world.prepared(at);
    }
    assert_eq!(world.settle().requeue_after, Some(Duration::from_secs(40)));
    world.seconds_pass(40);
    world.settle();
    assert_eq!(world.state(), "DeadlineExceeded");
    assert!(world.observed.pods.is_empty());
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
        (world.lingering, world.job.suspend) = (true, true);
        world.settle();
        for at in 0..2 {
            let progress = Progress {
                generation: 1,
                step: 70,
                total_steps: 100,
                checkpoint_step: (at == saver).then_some(70),
                ..Progress::default()
            };
            world.ends(at, 143, 70);
            world.has_told(at, &progress);
        }
        world.settle();
        for _ in 0..2 {
            world.vanishes(0);
        }
        world.settle();
        assert!(message(&world).contains("70 steps"), "{}", message(&world));
    }
}

#[test]
fn a_job_that_completes_while_it_is_suspended_has_succeeded() {
    let mut world = trains();
    for at in 0..2 {
        world.ends(at, 0, 100);
    }
    world.job.suspend = true;
    world.settle();
    assert_eq!(world.state(), "Completed");
}

#[test]
fn the_newest_checkpoint_is_shown_and_one_that_fails_is_told_once() {
    let mut world = trains();
    told(&mut world, 50, Some(40), None);
    world.settle();
    let shown = world.observed.status.checkpoint.clone().unwrap();
    assert_eq!(
        (shown.step, shown.time.unwrap().0.as_second()),
        (Some(40), 7)
    );
    told(&mut world, 60, None, Some("no space left"));
    let plan = world.plan();
    assert_eq!(plan.events[0].reason, "CheckpointFailed");
    world.settle();
    assert_eq!(
        world.observed.status.checkpoint.as_ref().unwrap().step,
        Some(40)
    );
    assert!(message(&world).ends_with("trouble with checkpoints: no space left"));
    assert_eq!(world.state(), "Training");
    told(&mut world, 70, Some(40), Some("no space left"));
    assert!(world.plan().events.is_empty());
    told(&mut world, 80, Some(80), None);
    world.settle();
    assert!(!message(&world).contains("trouble"));
}

#[test]
fn trouble_with_a_checkpoint_is_shown_at_once_and_other_progress_when_it_is_time() {
    let mut world = trains();
    told(&mut world, 50, Some(40), None);
    world.settle();
    told_now(&mut world, 51, Some(40), Some("no space left"));
    world.settle();
    assert!(message(&world).ends_with("trouble with checkpoints: no space left"));
    told_now(&mut world, 52, Some(52), None);
    world.settle();
    let shown = world.observed.status.progress.as_ref().unwrap();
    assert_eq!(shown.progress.step, 51);
}
