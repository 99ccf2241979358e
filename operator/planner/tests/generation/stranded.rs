//! A generation that breaks although none of its members dies.

use jiff::SignedDuration;
use roundhouse_contract::Progress;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{PlanReason, ProgressSample};

/// Two workers in generation 2, after one of them had lost the other in generation 1.
fn stranded_once() -> World {
    let mut world = world(2).training();
    world.seconds_pass(60);
    world.is_ready(1, false);
    world.seconds_pass(2);
    world.settle();
    assert_eq!(world.generation(), 2);
    world
}

#[test]
fn lost_peers_get_a_new_generation_and_one_incident() {
    let mut world = world(3).training();
    world.seconds_pass(60);
    world.is_ready(0, false);
    world.is_ready(2, false);
    world.seconds_pass(2);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generation(), 2);
    let status = &world.observed.status;
    assert_eq!(status.incidents.total, 1);
    assert_eq!(status.last_failure.as_ref().unwrap().reason, "PeersLost");
}

/// Rank 0 works alone for longer than the timeout of the others, which have committed
/// step 40 with it.
fn waited_for_rank_0(num_workers: u32) -> World {
    let mut world = world(num_workers).training();
    world.seconds_pass(60);
    progresses(&mut world, 40, 100);
    for at in 1..num_workers as usize {
        world.is_ready(at, false);
    }
    world.seconds_pass(2);
    world.settle();
    world
}

#[test]
fn broken_generation_names_the_suspect_and_the_step() {
    for num_workers in [2, 4] {
        let world = waited_for_rank_0(num_workers);
        let failure = world.observed.status.last_failure.as_ref().unwrap();
        assert_eq!((&*failure.reason, failure.step), ("PeersLost", Some(40)));
        let words = &failure.message;
        let named = format!("probably {} (rank 0)", world.observed.pods[0].name);
        assert!(words.ends_with(&named), "{words}");
    }
    // If all have lost each other, none of them is the one that the others waited for.
    let mut world = world(2).training();
    world.seconds_pass(60);
    world.is_ready(0, false);
    world.is_ready(1, false);
    world.seconds_pass(2);
    world.settle();
    let failure = world.observed.status.last_failure.as_ref().unwrap();
    assert!(!failure.message.contains("probably"), "{failure:?}");
}

#[test]
fn member_has_time_to_receive_its_generation() {
    let mut world = stranded_once();
    world.seconds_pass(10);
    let plan = world.settle();
    assert_eq!(world.generation(), 2);
    assert!(plan.requeue_after.is_some_and(|after| after.as_secs() <= 5));
    world.seconds_pass(10);
    world.settle();
    assert_eq!(world.generation(), 3);
    assert_eq!(world.observed.status.incidents.total, 2);
}

#[test]
fn outdated_readiness_of_a_formed_generation_is_ignored() {
    let mut world = stranded_once();
    // No kubelet reaches the API server, but the operator reaches rank 0.
    world.observed.formed = Some(2);
    world.seconds_pass(60);
    world.settle();
    assert_eq!(
        (world.generation(), world.observed.status.incidents.total),
        (2, 1)
    );
    world.is_ready(1, true);
    world.seconds_pass(60);
    // A new loss of readiness counts.
    world.is_ready(1, false);
    world.seconds_pass(2);
    world.settle();
    assert_eq!(
        (world.generation(), world.observed.status.incidents.total),
        (3, 2)
    );
}

#[test]
fn restarted_operator_waits_before_it_counts_lost_peers() {
    let mut world = stranded_once();
    // The generation was issued long ago. This operator has just started, and has no report of rank
    // 0.
    world.seconds_pass(60);
    world.observed.watched_since = Some(world.now);
    world.settle();
    assert_eq!(
        (world.generation(), world.observed.status.incidents.total),
        (2, 1)
    );
    world.seconds_pass(16);
    world.settle();
    assert_eq!(world.generation(), 3);
}

#[test]
fn unready_member_of_a_formed_generation_gets_the_next() {
    let mut world = stranded_once();
    world.observed.formed = Some(2);
    world.seconds_pass(121);
    world.settle();
    assert_eq!(world.generation(), 3);
}

#[test]
fn time_to_form_starts_with_the_last_issue() {
    let mut world = stranded_once();
    let last = world.now + SignedDuration::from_secs(20);
    let document = world.observed.pods[0].membership.as_mut();
    document.unwrap().issued_at = last.to_string();
    world.seconds_pass(25);
    world.settle();
    assert_eq!(world.generation(), 2, "5 s after the last one");
    world.seconds_pass(11);
    world.settle();
    assert_eq!(world.generation(), 3);
}

#[test]
fn late_report_of_a_death_is_the_only_incident() {
    let mut world = world(3).training();
    world.seconds_pass(60);
    world.is_ready(0, false);
    world.is_ready(2, false);
    world.seconds_pass(1);
    let plan = world.settle();
    assert_eq!(world.observed.status.incidents.total, 0);
    assert_eq!(plan.requeue_after.unwrap().as_secs(), 1);
    world.ends(1, 137, 40);
    world.settle();
    assert_eq!(incidents(&world), (1, "Crashed"));
}

#[test]
fn clock_of_a_node_ahead_delays_nothing() {
    let mut world = world(2).training();
    world.seconds_pass(60);
    world.is_ready(1, false);
    let ahead = world.now + SignedDuration::from_mins(5);
    world.observed.pods[1].ready_at = Some(ahead);
    world.settle();
    assert_eq!(world.generation(), 2);
}

/// Rank 0 reports that all steps are done.
fn completes(world: &mut World) {
    progresses(world, 100, 100);
}

/// Rank 0 reports a step.
fn progresses(world: &mut World, step: u64, total_steps: u64) {
    let progress = Progress {
        generation: 1,
        step,
        total_steps,
        ..Progress::default()
    };
    let at = world.now;
    world.observed.progress = Some(ProgressSample { progress, at });
}

#[test]
fn new_workers_waiting_for_results_are_no_incident() {
    let mut world = world(3).training();
    world.seconds_pass(60);
    completes(&mut world);
    world.is_ready(2, false);
    world.seconds_pass(120);
    world.settle();
    assert_eq!(world.observed.status.incidents.total, 0);
    assert_eq!(world.generation(), 1);
    // If none of them is ready, they have lost each other.
    world.is_ready(0, false);
    world.is_ready(1, false);
    world.seconds_pass(2);
    world.settle();
    assert_eq!(
        (world.generation(), incidents(&world)),
        (2, (1, "PeersLost"))
    );
}

#[test]
fn job_that_saves_its_results_does_not_grow() {
    let mut world = world(1).training();
    completes(&mut world);
    (world.job.replicas, world.job.max_replicas) = (2, 2);
    world.settle();
    world.prepared(1);
    world.seconds_pass(60);
    world.settle();
    assert_eq!(world.generation(), 1);
}

#[test]
fn late_unreadiness_does_not_break_the_next_generation() {
    let mut world = world(2).training();
    world.ends(0, 137, 40);
    world.job.min_replicas = 1;
    world.settle();
    assert_eq!(world.generation(), 2);
    world.seconds_pass(1);
    world.is_ready(1, false);
    world.settle();
    assert_eq!(world.generation(), 2);
    assert_eq!(world.observed.status.incidents.total, 1);
}

#[test]
fn lost_peers_of_a_leaving_worker_are_no_incident() {
    let mut world = world(3).training();
    world.seconds_pass(60);
    world.observed.pods[1].deleting = true;
    world.is_ready(0, false);
    world.is_ready(2, false);
    world.settle();
    assert_eq!(world.observed.status.incidents.total, 0);
}

fn incidents(world: &World) -> (u32, &str) {
    let status = &world.observed.status;
    let last = status.last_failure.as_ref();
    (status.incidents.total, &last.unwrap().reason)
}

#[test]
fn single_rank_has_no_peers_to_lose() {
    let mut world = world(1).training();
    world.seconds_pass(60);
    world.is_ready(0, false);
    world.seconds_pass(300);
    world.settle();
    assert_eq!(world.observed.status.incidents.total, 0);
    assert_eq!(world.generation(), 1);
}

#[test]
fn forming_member_is_not_stranded_by_a_clock_ahead() {
    let mut world = stranded_once();
    // The kubelet reported the end of the previous generation, by a clock that is 20 s ahead.
    let ahead = world.now + SignedDuration::from_secs(20);
    world.observed.pods[1].ready_at = Some(ahead);
    world.seconds_pass(14);
    world.settle();
    assert_eq!(world.generation(), 2, "it is still given time to form");
}
