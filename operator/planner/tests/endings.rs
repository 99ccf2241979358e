//! What counts as an incident, and how a job ends.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use roundhouse_api::{CleanPodPolicy, ConditionType};
use roundhouse_contract::Progress;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{PlanReason, ProgressSample, Waiting, WriteBlocked, plan_refused};

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

/// What rank 0 tells at a step.
fn at_step(world: &World, step: u64) -> Progress {
    Progress {
        generation: world.generation(),
        step,
        repeated_steps: step / 10,
        ..Progress::default()
    }
}

#[test]
fn a_job_that_fails_shows_the_last_step_that_anybody_told_of() {
    for (heard, told) in [(7, None), (7, Some(9)), (9, Some(7))] {
        let mut world = world(2).training();
        let sample = |world: &World, step| ProgressSample {
            progress: at_step(world, step),
            at: world.now,
        };
        world.observed.progress = Some(sample(&world, 5));
        world.settle();
        // Too soon after the last one to be shown while the job trains.
        world.seconds_pass(1);
        world.observed.progress = Some(sample(&world, heard));
        world.ends(0, 64, 7);
        if let Some(step) = told {
            let words = at_step(&world, step);
            world.has_reported(0, &words);
        }
        world.settle();
        assert_eq!(world.state(), "ConfigInvalid");
        let shown = world.observed.status.progress.as_ref().unwrap();
        let last = told.unwrap_or(0).max(heard);
        assert_eq!(shown.progress.step, last, "{heard} {told:?}");
    }
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
    let message = &world.observed.status.front().unwrap().message;
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
    world.job.start_deadline = Some(Duration::from_secs(600));
    world.settle();
    world.observed.pods[1].unschedulable = Some("0/2 nodes: Insufficient nvidia.com/gpu".into());
    let plan = world.settle();
    assert_eq!(world.state(), "Unschedulable");
    assert_eq!(plan.requeue_after, world.job.start_deadline);
    world.seconds_pass(600);
    world.settle();
    assert_eq!(world.state(), "StartDeadlineExceeded");
    let message = &world.observed.status.front().unwrap().message;
    assert!(message.contains("Insufficient nvidia.com/gpu"), "{message}");
}

#[test]
fn other_numbers_in_the_schedulers_words_are_no_news() {
    let mut world = world(3);
    world.settle();
    let words = |world: &mut World, words: &str| {
        world.observed.pods[1].unschedulable = Some(words.into());
        world.settle();
        world.observed.status.front().unwrap().message.clone()
    };
    let first = words(&mut world, "0/5 nodes are available: 3 Insufficient cpu");
    let same = words(&mut world, "0/6 nodes are available: 4 Insufficient cpu");
    assert_eq!(same, first);
    world.prepared(0);
    let ready = words(&mut world, "0/7 nodes are available: 5 Insufficient cpu");
    assert!(ready.starts_with("1 of 3 workers ready; "), "{ready}");
    assert!(ready.contains("3 Insufficient cpu"), "{ready}");
    let other = words(&mut world, "0/7 nodes are available: 7 had taints");
    assert!(other.contains("7 had taints"), "{other}");
}

#[test]
fn a_job_without_a_start_deadline_waits_for_a_node_for_as_long_as_it_takes() {
    let mut world = world(2);
    world.settle();
    world.observed.pods[1].unschedulable = Some("0/2 nodes: Insufficient nvidia.com/gpu".into());
    world.seconds_pass(100_000);
    world.settle();
    assert_eq!(world.state(), "Unschedulable");
    for at in 0..2 {
        world.prepared(at);
    }
    world.settle();
    assert_eq!(world.state(), "Training");
}

#[test]
fn an_image_that_cannot_be_pulled_is_told_in_the_kubelets_words() {
    let mut world = world(1);
    world.settle();
    let (reason, message) = ("ImagePullBackOff".to_owned(), "no such image".to_owned());
    world.observed.pods[0].container.waiting = Some(Waiting { reason, message });
    world.settle();
    assert_eq!(world.state(), "ImagePullFailed");
    let message = &world.observed.status.front().unwrap().message;
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
fn a_finished_job_that_is_applied_again_says_that_nothing_was_left_to_train_and_what_to_do() {
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
fn a_death_after_another_worker_completed_takes_nothing_away() {
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
fn a_member_of_which_only_the_news_are_late_is_not_taken_for_one_that_never_ends() {
    let mut world = world(2).training();
    world.ends(0, 0, 100);
    // All was told half a minute late: the others have ended, too.
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

#[test]
fn clean_pod_policy_all_deletes_the_completed_too() {
    let mut world = world(1).training();
    world.job.clean_pod_policy = CleanPodPolicy::All;
    world.ends(0, 0, 1);
    world.settle();
    assert!(world.observed.pods.is_empty());
}

#[test]
fn an_older_view_of_a_completed_worker_does_not_delete_its_pod() {
    let mut world = world(2).training();
    world.ends(0, 0, 40);
    let running = world.observed.pods[1].clone();
    world.ends(1, 0, 40);
    world.settle();
    assert!(world.observed.status.is_terminal());
    // An older cache shows the worker as it was.
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
fn clean_pod_policy_none_keeps_workers_that_trained_and_none_that_waits_for_ever() {
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
fn clean_pod_policy_none_does_not_keep_a_newcomer_whom_the_end_was_faster_than() {
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
fn the_status_is_always_about_the_newest_spec() {
    let accepted = |world: &World| {
        let status = &world.observed.status;
        let accepted = status.condition(ConditionType::Accepted).unwrap();
        let seen = (status.observed_generation, accepted.observed_generation);
        (seen, accepted.message.clone())
    };
    let mut world = world(2).training();
    (world.job.generation, world.job.replicas) = (2, 3);
    (world.job.min_replicas, world.job.max_replicas) = (1, 3);
    world.settle();
    let (seen, message) = accepted(&world);
    assert_eq!(seen, (Some(2), Some(2)));
    assert!(message.starts_with("3 workers"), "{message}");
    assert_eq!(world.state(), "Training", "the state stays");
    let events = world.plan().events;
    assert!(events.is_empty(), "it was accepted before: {events:?}");
    world.ends(0, 64, 0);
    world.settle();
    assert_eq!(world.state(), "ConfigInvalid");
    world.job.generation = 3;
    world.settle();
    assert_eq!(world.observed.status.observed_generation, Some(3));
    let before = world.observed.status.conditions.clone();
    (world.job.generation, world.job.replicas) = (4, 0);
    world.is_rejected("spec.workers.replicas: must be at least 1");
    world.settle();
    assert_eq!(world.observed.status.observed_generation, Some(4));
    assert_eq!(world.observed.status.conditions, before);
}

#[test]
fn workers_that_the_api_server_refuses_end_the_job_with_its_words() {
    let mut world = world(1);
    world.job.start_deadline = Some(Duration::from_secs(600));
    let before = world.observed.status.clone();
    let words = WriteBlocked::Refused("pods is forbidden: exceeded quota".to_owned());
    let plan = plan_refused(&world.plan(), &before, &words, world.now);
    world.observed.status = plan.status;
    world.seconds_pass(600);
    let plan = world.plan();
    let front = plan.status.front().unwrap();
    assert_eq!(front.reason, "StartDeadlineExceeded");
    assert!(front.message.contains("exceeded quota"), "{front:?}");
}
