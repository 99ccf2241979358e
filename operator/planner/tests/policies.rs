//! What the operator decides, case by case.
#![allow(missing_docs, clippy::unwrap_used)]

use roundhouse_api::{CleanPodPolicy, ConditionType};
use roundhouse_planner::testing::{World, raw_job, world};
use roundhouse_planner::{
    Action, DeleteReason, PlanReason, Pod, PodPhase, Presence, Waiting, plan_invalid, plan_refused,
    validate,
};

fn creates(actions: &[Action]) -> Vec<(u32, u32)> {
    let created = |action: &Action| match action {
        Action::CreateWorker { index, attempt, .. } => Some((*index, *attempt)),
        _ => None,
    };
    actions.iter().filter_map(created).collect()
}

fn deletes(actions: &[Action]) -> Vec<(&str, DeleteReason)> {
    let deleted = |action| match action {
        &Action::DeletePod {
            ref pod, reason, ..
        } => Some((pod.as_str(), reason)),
        _ => None,
    };
    actions.iter().filter_map(deleted).collect()
}

#[test]
fn a_new_job_gets_its_service_policy_and_all_workers_at_once() {
    let plan = world(2).plan();
    assert_eq!(
        plan.actions[..2],
        [Action::ApplyService, Action::ApplyNetworkPolicy]
    );
    assert_eq!(creates(&plan.actions), [(0, 0), (1, 0)]);
    assert_eq!(plan.status.conditions[0].reason, "WaitingForWorkers");
    assert!(plan.status.is_true(ConditionType::Accepted));
}

#[test]
fn generation_1_waits_for_the_last_worker() {
    let mut world = world(2);
    world.settle();
    world.prepared(0);
    world.settle();
    assert_eq!(world.generations(), [0, 0]);
    assert_eq!(
        world.observed.status.conditions[0].message,
        "1 of 2 workers ready"
    );
    world.prepared(1);
    world.settle();
    assert_eq!(world.generations(), [1, 1]);
    assert_eq!(world.state(), "Training");
}

#[test]
fn a_generation_is_stored_before_any_pod_hears_of_it() {
    let mut world = world(2).lobby();
    let plan = world.plan();
    assert_eq!(plan.reason, PlanReason::RaisingGeneration);
    assert!(plan.actions.is_empty());
    world.carry_out(&plan, usize::MAX);
    assert_eq!(world.plan().reason, PlanReason::IssuingMembership);
}

#[test]
fn a_half_issued_generation_is_issued_to_the_rest() {
    let mut world = world(3).lobby();
    let raise = world.plan();
    world.carry_out(&raise, usize::MAX);
    let issue = world.plan();
    world.carry_out(&issue, 1);
    assert_eq!(world.generations(), [1, 0, 0]);
    world.settle();
    assert_eq!(world.generations(), [1, 1, 1]);
    let places: Vec<_> = world
        .observed
        .pods
        .iter()
        .map(|pod| pod.membership.clone().unwrap())
        .collect();
    assert_eq!(
        places
            .iter()
            .map(|place| place.node_rank)
            .collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert!(
        places
            .iter()
            .all(|place| place.master.address == "10.0.0.0")
    );
}

#[test]
fn a_worker_that_dies_before_it_is_issued_makes_the_number_grow() {
    let mut world = world(2).lobby();
    let raise = world.plan();
    world.carry_out(&raise, usize::MAX);
    world.ends(1, 1, 0);
    world.restarts(1);
    world.prepared(1);
    world.settle();
    assert_eq!(world.generations(), [2, 2]);
    assert_eq!(world.observed.status.incidents.total, 0);
}

#[test]
fn a_failure_is_one_incident_however_many_lose_their_peer() {
    let mut world = world(3).training();
    world.ends(1, 137, 40);
    world.settle();
    world.ends(0, 75, 40);
    world.settle();
    world.ends(2, 75, 40);
    world.settle();
    let incidents = &world.observed.status.incidents;
    assert_eq!(
        (
            incidents.total,
            incidents.since_progress,
            incidents.last_step
        ),
        (1, 1, 40)
    );
    let failure = world.observed.status.last_failure.as_ref().unwrap();
    assert_eq!(
        (failure.worker.as_str(), failure.exit_code),
        ("digits-worker-1-0", Some(137))
    );
    for at in 0..3 {
        world.restarts(at);
        world.settle();
        world.prepared(at);
        world.settle();
    }
    assert_eq!(world.generations(), [2, 2, 2]);
    assert_eq!(world.observed.status.incidents.total, 1);
}

#[test]
fn the_failure_that_explains_the_others_takes_the_place_of_a_lost_peer() {
    let mut world = world(2).training();
    world.ends(0, 75, 40);
    world.settle();
    let code = |world: &World| {
        world
            .observed
            .status
            .last_failure
            .as_ref()
            .unwrap()
            .exit_code
    };
    assert_eq!(code(&world), Some(75));
    world.ends(1, 137, 40);
    world.settle();
    assert_eq!(code(&world), Some(137));
    assert_eq!(world.observed.status.incidents.total, 1);
}

#[test]
fn progress_resets_the_count_and_the_limit_ends_the_job() {
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
        world.observed.status.conditions[0]
            .message
            .contains("words")
    );
}

#[test]
fn a_container_that_never_gets_to_the_lobby_ends_the_job_too() {
    let mut world = world(1);
    world.job.backoff_limit = 1;
    world.settle();
    for _ in 0..2 {
        world.ends(0, 70, 0);
        world.settle();
        assert_eq!(world.state(), "WaitingForWorkers");
        world.restarts(0);
        world.settle();
    }
    assert_eq!(world.state(), "BackoffLimitExceeded");
}

#[test]
fn wrong_data_ends_the_job_at_once_with_the_workers_words() {
    let mut world = world(2);
    world.settle();
    world.ends(1, 65, 0);
    world.settle();
    assert_eq!(world.state(), "DataInvalid");
    let message = &world.observed.status.conditions[0].message;
    assert_eq!(
        message,
        "digits-worker-1-0 rank 0: DataInvalid (exit code 65): words"
    );
    assert!(
        world.observed.pods.is_empty(),
        "pods of a failed job would restart for ever"
    );
}

#[test]
fn workers_that_are_never_ready_end_the_job_with_the_real_reason() {
    let mut world = world(2);
    world.settle();
    world.observed.pods[1].unschedulable = Some("0/2 nodes: Insufficient nvidia.com/gpu".into());
    let plan = world.settle();
    assert_eq!(world.state(), "Unschedulable");
    assert_eq!(plan.requeue_after, Some(world.job.start_deadline));
    world.seconds_pass(600);
    world.settle();
    assert_eq!(world.state(), "StartDeadlineExceeded");
    let message = &world.observed.status.conditions[0].message;
    assert!(message.contains("Insufficient nvidia.com/gpu"), "{message}");
}

#[test]
fn an_image_that_cannot_be_pulled_is_told_in_the_kubelets_words() {
    let mut world = world(1);
    world.settle();
    let (reason, message) = ("ImagePullBackOff".to_owned(), "no such image".to_owned());
    world.observed.pods[0].container.waiting = Some(Waiting { reason, message });
    world.settle();
    assert_eq!(world.state(), "ImagePullFailed");
    let message = &world.observed.status.conditions[0].message;
    assert!(
        message.ends_with("digits-worker-0-0: ImagePullBackOff: no such image"),
        "{message}"
    );
}

#[test]
fn the_job_succeeds_when_every_member_has_ended_and_one_completed() {
    let mut world = world(2).training();
    world.ends(0, 0, 100);
    assert_eq!(world.settle().reason, PlanReason::Finishing);
    assert!(!world.observed.status.is_terminal());
    world.ends(1, 0, 100);
    let plan = world.plan();
    assert_eq!(plan.reason, PlanReason::Succeeded);
    assert!(
        plan.actions.is_empty(),
        "the status is stored before anything is cleaned up"
    );
    world.settle();
    assert_eq!(world.state(), "Completed");
    assert_eq!(
        world.observed.pods.len(),
        2,
        "completed pods stay with their logs"
    );
}

#[test]
fn who_dies_after_another_completed_takes_nothing_away() {
    let mut world = world(2).training();
    world.ends(0, 0, 100);
    world.ends(1, 137, 100);
    world.restarts(1);
    world.settle();
    assert_eq!(world.state(), "Completed");
}

#[test]
fn a_member_that_never_ends_does_not_hold_up_success() {
    let mut world = world(2).training();
    world.ends(0, 0, 100);
    let plan = world.settle();
    world.seconds_pass(i64::try_from(plan.requeue_after.unwrap().as_secs()).unwrap());
    world.settle();
    assert_eq!(world.state(), "Completed");
}

#[test]
fn clean_pod_policy_all_deletes_the_completed_too() {
    let mut world = world(1).training();
    world.job.clean_pod_policy = CleanPodPolicy::All;
    world.ends(0, 0, 1);
    world.settle();
    assert!(world.observed.pods.is_empty());
}

#[test]
fn what_has_ended_never_starts_again() {
    let mut world = world(1).training();
    world.ends(0, 0, 1);
    world.settle();
    let ended = world.observed.status.clone();
    world.vanishes(0);
    world.seconds_pass(10_000);
    let plan = world.settle();
    assert_eq!(plan.reason, PlanReason::Succeeded);
    assert_eq!(world.observed.status, ended);
    assert!(world.observed.pods.is_empty());
}

#[test]
fn a_failed_pod_is_replaced_by_the_next_attempt() {
    let mut world = world(2).training();
    world.observed.pods[1].phase = PodPhase::Failed;
    let plan = world.plan();
    assert_eq!(creates(&plan.actions), [(1, 1)]);
    assert_eq!(
        deletes(&plan.actions),
        [("digits-worker-1-0", DeleteReason::Replaced)]
    );
}

#[test]
fn a_pod_on_its_way_out_is_replaced_and_not_deleted_again() {
    let mut world = world(2).training();
    world.observed.pods[1].deleting = true;
    let plan = world.plan();
    assert_eq!(creates(&plan.actions), [(1, 1)]);
    assert!(deletes(&plan.actions).is_empty());
}

#[test]
fn of_two_pods_of_one_worker_the_later_attempt_stays() {
    let mut world = world(1).training();
    let later = Pod {
        name: "digits-worker-0-3".into(),
        uid: "x".into(),
        attempt: 3,
        ..world.observed.pods[0].clone()
    };
    world.observed.pods.push(later);
    let plan = world.plan();
    assert_eq!(
        deletes(&plan.actions),
        [("digits-worker-0-0", DeleteReason::Surplus)]
    );
}

#[test]
fn a_strangers_object_of_our_name_is_named_and_nothing_is_touched() {
    let mut world = world(2);
    world.observed.service = Presence::Foreign;
    let plan = world.plan();
    assert_eq!(plan.reason, PlanReason::NameTaken);
    assert!(plan.actions.is_empty());
    assert!(plan.status.conditions[0].message.contains("Service digits"));
    world.settle();
    assert!(world.plan().events.is_empty(), "told once");
}

#[test]
fn what_the_api_server_refuses_is_told_once() {
    let mut world = world(1);
    let refused =
        |world: &World| plan_refused(&world.plan(), &world.observed.status, "no", world.now);
    let first = refused(&world);
    assert_eq!(first.status.conditions[0].reason, "Refused");
    let about =
        |plan: &roundhouse_planner::Plan| plan.events.iter().any(|event| event.reason == "Refused");
    assert!(about(&first));
    world.observed.status = first.status;
    let second = refused(&world);
    assert!(!about(&second));
    assert_eq!(second.status, world.observed.status);
}

#[test]
fn a_job_that_is_being_deleted_is_left_to_the_garbage_collector() {
    let mut world = world(2).training();
    world.job.deleting = true;
    world.vanishes(0);
    let plan = world.plan();
    assert!(plan.actions.is_empty() && plan.status == world.observed.status);
}

#[test]
fn what_cannot_be_run_is_said_in_one_sentence() {
    type Change = fn(&mut roundhouse_api::TrainingJob);
    let cases: [(&str, Change); 6] = [
        ("metadata.name", |job| {
            job.metadata.name = Some("a.b".into())
        }),
        ("spec.workers.replicas", |job| job.spec.workers.replicas = 0),
        ("spec.trainer.epochs", |job| {
            job.spec.trainer.as_mut().unwrap().epochs = None
        }),
        ("spec.workers.template.spec.hostNetwork", |job| {
            job.spec
                .workers
                .template
                .get_or_insert_default()
                .spec
                .get_or_insert_default()
                .host_network = Some(true);
        }),
        ("spec.workers.template.spec.restartPolicy", |job| {
            job.spec
                .workers
                .template
                .get_or_insert_default()
                .spec
                .get_or_insert_default()
                .restart_policy = Some("Always".into());
        }),
        ("spec.workers.procsPerWorker", |job| {
            job.spec.workers.procs_per_worker = Some(65)
        }),
    ];
    for (field, change) in cases {
        let mut job = raw_job(1);
        change(&mut job);
        let error = validate(&job).unwrap_err();
        assert_eq!(error.field, field);
        let plan = plan_invalid(&job, &error, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(plan.status.conditions[0].reason, "InvalidSpec");
        assert_eq!(plan.events.len(), 1);
        job.status = Some(plan.status);
        assert!(
            plan_invalid(&job, &error, jiff::Timestamp::UNIX_EPOCH)
                .events
                .is_empty()
        );
    }
}

#[test]
fn processes_are_as_many_as_gpus() {
    let mut job = raw_job(1);
    job.spec.workers.template = serde_json::from_value(serde_json::json!({"spec": {"containers": [
        {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}}))
    .unwrap();
    assert_eq!(validate(&job).unwrap().procs_per_worker, 8);
}
