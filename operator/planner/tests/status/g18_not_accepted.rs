//! Jobs that are not accepted: managed like other jobs, without new pods.

use std::time::Duration;

use roundhouse_api::{ConditionType, TrainingJob};
use roundhouse_contract::Mode;
use roundhouse_planner::testing::{World, raw_job, raw_script_job, world};
use roundhouse_planner::{Action, PlanReason, PodPhase, Presence, gpu, validate_with};

const WHY: &str = "spec.checkpoint.keep: must be at least 2";

/// Two workers train when the spec is refused.
fn refused_while_training() -> World {
    let mut world = world(2).training();
    world.is_rejected(WHY);
    world
}

fn creations(world: &World) -> usize {
    let plan = world.plan();
    let made = |action: &&Action| {
        matches!(
            action,
            Action::CreateWorker { .. } | Action::CreateService | Action::CreateNetworkPolicy
        )
    };
    plan.actions.iter().filter(made).count()
}

#[test]
fn rejected_new_job_gets_no_objects() {
    let mut world = world(2);
    world.is_rejected(WHY);
    let plan = world.settle();
    assert_eq!(plan.reason, PlanReason::NotAccepted);
    assert_eq!((world.state(), plan.requeue_after), ("InvalidSpec", None));
    assert!(world.observed.pods.is_empty());
    assert_eq!(world.observed.service, Presence::Missing);
    let status = &world.observed.status;
    for kind in [ConditionType::Accepted, ConditionType::Running] {
        let condition = status.condition(kind).unwrap();
        let is = (&*condition.status, &*condition.message);
        assert_eq!(is, ("False", WHY), "{kind:?}");
    }
    assert!(status.start_time.is_none(), "its time has not begun");
    world.rejection = None;
    world.settle();
    assert_eq!(world.state(), "WaitingForWorkers");
    assert_eq!(world.observed.pods.len(), 2);
}

#[test]
fn rejected_job_keeps_training() {
    let mut world = refused_while_training();
    let plan = world.plan();
    assert_eq!((plan.reason, plan.events.len()), (PlanReason::Training, 1));
    world.settle();
    assert_eq!(world.state(), "Training");
    let status = &world.observed.status;
    assert!(status.is_true(ConditionType::Running));
    assert!(status.front().unwrap().message.ends_with(WHY));
    let accepted = status.condition(ConditionType::Accepted).unwrap();
    assert_eq!((&*accepted.status, &*accepted.message), ("False", WHY));
}

#[test]
fn rejected_job_keeps_restarted_but_not_lost_workers() {
    let mut world = refused_while_training();
    world.ends(0, 1, 40);
    world.restarts(0);
    world.prepared(0);
    world.settle();
    assert_eq!(world.generations(), [2, 2]);
    world.vanishes(1);
    world.settle();
    assert_eq!((world.observed.pods.len(), creations(&world)), (1, 0));
    assert_eq!(world.state(), "InvalidSpec", "the other one waits");
    world.rejection = None;
    world.settle();
    assert_eq!(world.observed.pods.len(), 2);
}

#[test]
fn unknown_replica_count_removes_no_worker() {
    let mut world = refused_while_training();
    world.job.replicas = 0;
    world.observed.status.workers = None;
    world.settle();
    assert_eq!(
        (world.observed.pods.len(), world.generations()),
        (2, vec![1, 1])
    );
}

#[test]
fn failed_pod_of_a_rejected_job_is_not_deleted() {
    let mut world = refused_while_training();
    world.observed.pods[1].phase = PodPhase::Failed;
    assert!(world.plan().actions.is_empty());
}

#[test]
fn rejected_job_gets_its_network_policy_back() {
    let mut world = refused_while_training();
    world.observed.network_policy = Presence::Missing;
    assert_eq!(world.plan().actions, [Action::CreateNetworkPolicy]);
}

#[test]
fn rejected_job_can_be_suspended_and_resumed() {
    let mut world = refused_while_training();
    world.job.suspend = true;
    world.settle();
    assert!(world.observed.pods.is_empty());
    let status = &world.observed.status;
    assert!(status.is_true(ConditionType::Suspended));
    assert!(!status.is_true(ConditionType::Running));
    assert_eq!(
        world.state(),
        "InvalidSpec",
        "that is what a user can repair"
    );
    world.job.suspend = false;
    world.settle();
    assert_eq!(creations(&world), 0);
    world.rejection = None;
    world.settle();
    assert_eq!(world.observed.pods.len(), 2);
}

#[test]
fn rejected_job_ends_and_is_cleaned_up() {
    for (code, state) in [(0, "Completed"), (64, "ConfigInvalid")] {
        let mut world = refused_while_training();
        world.ends(0, code, 40);
        world.ends(1, code, 40);
        world.settle();
        assert_eq!(world.state(), state);
        let runs = |phase| matches!(phase, PodPhase::Pending | PodPhase::Running);
        let mut pods = world.observed.pods.iter();
        assert!(!pods.any(|pod| runs(pod.phase)), "{state}");
    }
}

#[test]
fn deadlines_of_a_rejected_job_run_once_started() {
    let mut active = refused_while_training();
    active.job.active_deadline = Some(Duration::from_secs(60));
    let mut starting = world(2);
    starting.job.start_deadline = Some(Duration::from_secs(60));
    starting.settle();
    starting.is_rejected(WHY);
    let mut never = world(2);
    never.job.start_deadline = Some(Duration::from_secs(60));
    never.is_rejected(WHY);
    let cases = [
        (active, "DeadlineExceeded"),
        (starting, "StartDeadlineExceeded"),
        (never, "InvalidSpec"),
    ];
    for (mut world, state) in cases {
        world.settle();
        world.seconds_pass(61);
        world.settle();
        assert_eq!(world.state(), state);
    }
}

#[test]
fn invalid_replica_count_removes_no_worker() {
    let mut world = refused_while_training();
    world.settle();
    (world.job.replicas, world.job.min_replicas) = (0, 0);
    world.settle();
    assert_eq!((world.observed.pods.len(), world.state()), (2, "Training"));
}

#[test]
fn refused_scale_up_does_not_stop_forming() {
    let mut world = refused_while_training();
    (world.job.replicas, world.job.min_replicas) = (200, 200);
    world.ends(0, 1, 40);
    world.restarts(0);
    world.prepared(0);
    world.settle();
    assert_eq!(world.generations(), [2, 2]);
}

#[test]
fn rejected_job_can_be_scaled_down() {
    let mut world = refused_while_training();
    (world.job.replicas, world.job.min_replicas) = (1, 1);
    world.settle();
    assert_eq!(world.observed.pods.len(), 1);
}

#[test]
fn invalid_spec_is_managed_as_it_ran() {
    let refused = |mut job: TrainingJob, change: fn(&mut TrainingJob)| {
        job.status = Some(world(2).training().observed.status);
        if let Some(membership) = job.status.as_mut().and_then(|it| it.membership.as_mut()) {
            membership.world_size = 8;
        }
        change(&mut job);
        let validation = validate_with(&job, &gpu::Listed::default(), &[]);
        assert!(validation.refusal.is_some());
        validation.job
    };
    let script = refused(raw_script_job(2), |job| {
        job.spec.workers.template = None;
        // An unreadable part has its default.
        job.spec.elastic.mode = Mode::InProcess;
    });
    assert_eq!(script.program.mode(), Mode::Restart);
    assert_eq!(script.procs_per_worker, 4, "as the newest generation says");
    let trainer = refused(raw_job(2), |job| {
        job.spec.trainer.as_mut().unwrap().global_batch_size = 0;
    });
    assert_eq!(trainer.program.mode(), Mode::InProcess);
}
