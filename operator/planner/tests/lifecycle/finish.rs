//! How a job ends, and which pods are deleted afterwards.

use roundhouse_api::{CleanPodPolicy, ConditionType};
use roundhouse_contract::Progress;
use roundhouse_planner::testing::{World, raw_joining_job, world, world_of};
use roundhouse_planner::{PlanReason, PodPhase};

#[test]
fn job_succeeds_when_all_members_have_ended() {
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
fn job_without_remaining_steps_says_what_to_do() {
    for (loss, trained) in [(None, false), (Some(0.5), true)] {
        let mut world = world(1).training();
        world.ends(0, 0, 100);
        let end = world.observed.pods[0].container.termination.as_mut();
        let words = end.unwrap().message.as_mut().unwrap();
        words.progress = Some(Progress {
            generation: 1,
            step: 100,
            total_steps: 100,
            loss,
            ..Progress::default()
        });
        world.settle();
        assert_eq!(world.state(), "Completed");
        let status = &world.observed.status;
        let succeeded = status.condition(ConditionType::Succeeded).unwrap();
        let words = &succeeded.message;
        assert_eq!(
            words.contains("nothing was left to train"),
            !trained,
            "{words}"
        );
        assert_eq!(words.contains("another name"), !trained, "{words}");
    }
}

#[test]
fn death_after_a_completion_does_not_prevent_success() {
    let mut world = world(2).training();
    world.ends(0, 0, 100);
    world.ends(1, 137, 100);
    world.restarts(1);
    world.settle();
    assert_eq!(world.state(), "Completed");
}

#[test]
fn member_that_never_ends_does_not_delay_success() {
    let mut world = world(2).training();
    world.ends(0, 0, 100);
    let plan = world.settle();
    world.seconds_pass(i64::try_from(plan.requeue_after.unwrap().as_secs()).unwrap());
    world.settle();
    assert_eq!(world.state(), "Completed");
}

#[test]
fn stale_view_of_a_member_does_not_end_the_job() {
    let mut world = world(2).training();
    world.ends(0, 0, 100);
    // All reports are half a minute late, and the others have ended, too.
    world.seconds_pass(31);
    world.observed.fresh = false;
    let plan = world.plan();
    assert_eq!(plan.reason, PlanReason::Finishing);
    assert!(plan.needs_fresh && plan.requeue_after.is_some());
    world.ends(1, 0, 100);
    world.settle();
    assert_eq!(world.state(), "Completed");
    assert_eq!(world.observed.pods.len(), 2);
}

fn joining(workers: u32) -> World {
    world_of(&raw_joining_job(workers))
}

#[test]
fn joining_script_succeeds_when_all_members_complete() {
    let mut world = joining(2).training();
    world.ends(1, 0, 100);
    assert_eq!(world.settle().reason, PlanReason::Finishing);
    world.seconds_pass(3_600);
    assert_eq!(world.settle().reason, PlanReason::Finishing);
    world.ends(0, 0, 100);
    assert_eq!(world.settle().reason, PlanReason::Succeeded);
}

fn trains(workers: u32) -> World {
    let mut world = world(workers);
    world.job.min_replicas = 1;
    world.training()
}

#[test]
fn missing_worker_does_not_delay_success() {
    let mut world = trains(2);
    world.job.replicas = 3;
    world.settle();
    world.observed.pods[2].unschedulable = Some("no room".into());
    for at in 0..2 {
        world.ends(at, 0, 100);
    }
    world.settle();
    assert_eq!(world.state(), "Completed");
    assert_eq!(world.observed.pods.len(), 2, "nothing keeps its room");
}

#[test]
fn sidecar_does_not_affect_the_end() {
    let mut world = trains(1);
    world.ends(0, 0, 100);
    world.observed.pods[0].phase = PodPhase::Running;
    world.observed.pods[0].sidecar_runs = true;
    world.settle();
    assert_eq!(world.state(), "Completed");
    assert!(
        world.observed.pods.is_empty(),
        "a sidecar would run indefinitely"
    );
}

#[test]
fn failed_job_is_cleaned_up_until_no_pod_runs() {
    let mut world = trains(3);
    world.ends(0, 64, 0);
    let fail = world.plan();
    assert!(
        fail.actions.is_empty(),
        "the reason is stored before pods go"
    );
    world.carry_out(&fail, usize::MAX);
    let clean = world.plan();
    assert_eq!(clean.actions.len(), 3);
    world.carry_out(&clean, 1);
    assert_eq!(world.plan().actions.len(), 2);
    world.settle();
    assert!(world.observed.pods.is_empty());
    assert_eq!(world.state(), "ConfigInvalid");
}

/// etcd was restored: the job trains, and only a cache still has its end.
#[test]
fn pods_stay_until_the_end_of_the_job_is_confirmed() {
    let mut lost = world(2).training();
    lost.ends(0, 0, 100);
    lost.ends(1, 0, 100);
    lost.settle();
    for policy in [
        CleanPodPolicy::All,
        CleanPodPolicy::Running,
        CleanPodPolicy::None,
    ] {
        let mut world = world(2).training();
        world.job.clean_pod_policy = policy;
        world.observed.status = lost.observed.status.clone();
        world.observed.fresh = false;
        let plan = world.plan();
        assert!(plan.actions.is_empty() && plan.needs_fresh, "{policy:?}");
        // Clocks do not matter.
        (world.observed.fresh, world.observed.clock_off) = (true, true);
        assert_eq!(world.plan().actions.len(), 2, "{policy:?}");
    }
}

#[test]
fn clean_pod_policy_all_deletes_completed_pods() {
    let mut world = world(1).training();
    world.job.clean_pod_policy = CleanPodPolicy::All;
    world.ends(0, 0, 1);
    world.settle();
    assert!(world.observed.pods.is_empty());
}

#[test]
fn stale_view_of_a_completed_worker_deletes_no_pod() {
    let mut world = world(2).training();
    world.ends(0, 0, 40);
    let running = world.observed.pods[1].clone();
    world.ends(1, 0, 40);
    world.settle();
    assert!(world.observed.status.is_terminal());
    // A stale cache shows the worker as it was.
    let completed = std::mem::replace(&mut world.observed.pods[1], running);
    let plan = world.plan();
    world.observed.pods[1] = completed;
    world.observed.pods[1].resource_version = "newer".to_owned();
    let [deletion] = plan.actions.as_slice() else {
        panic!("{:?}", plan.actions)
    };
    assert!(!world.act(deletion), "{deletion:?}");
    assert_eq!(world.observed.pods.len(), 2);
    assert!(world.plan().actions.is_empty());
}

#[test]
fn clean_pod_policy_none_deletes_a_pod_without_a_node() {
    let mut world = world(1).training();
    world.job.clean_pod_policy = CleanPodPolicy::None;
    world.job.max_replicas = 2;
    world.job.replicas = 2;
    world.settle();
    assert_eq!(world.observed.pods.len(), 2, "the second waits for a node");
    world.ends(0, 0, 1);
    world.settle();
    let names: Vec<&str> = world.observed.pods.iter().map(|pod| &*pod.name).collect();
    assert_eq!(names, ["digits-worker-0-0"]);
}

#[test]
fn clean_pod_policy_none_deletes_a_pod_that_never_trained() {
    let mut world = world(2);
    world.job.min_replicas = 1;
    world.job.clean_pod_policy = CleanPodPolicy::None;
    let mut world = world.training();
    world.ends(0, 0, 100);
    let plan = world.settle();
    world.seconds_pass(i64::try_from(plan.requeue_after.unwrap().as_secs()).unwrap());
    world.settle();
    let names: Vec<&str> = world.observed.pods.iter().map(|pod| &*pod.name).collect();
    assert_eq!(
        (world.state(), &*names),
        ("Completed", &["digits-worker-0-0"][..])
    );
}

#[test]
fn ended_job_never_starts_again() {
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
