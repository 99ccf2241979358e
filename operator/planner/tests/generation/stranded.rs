//! A generation that breaks although none of its members dies.

use jiff::SignedDuration;
use roundhouse_contract::Progress;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{PlanReason, ProgressSample};

/// Two workers in generation 2: one of them had lost the other in the first.
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
fn members_that_have_lost_each_other_get_a_new_generation_and_it_is_one_incident() {
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

/// Rank 0 works alone for longer than the others wait, which have committed step 40 with it.
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
fn a_generation_that_broke_is_reported_with_the_member_that_was_waited_for_and_the_newest_step() {
    for num_workers in [2, 4] {
        let world = waited_for_rank_0(num_workers);
        let failure = world.observed.status.last_failure.as_ref().unwrap();
        assert_eq!((&*failure.reason, failure.step), ("PeersLost", Some(40)));
        let words = &failure.message;
        let named = format!("probably {} (rank 0)", world.observed.pods[0].name);
        assert!(words.ends_with(&named), "{words}");
    }
    // If all have lost each other, no member is one that the others waited for.
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
fn a_member_is_given_time_to_hear_of_its_generation() {
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
fn old_news_of_members_whose_generation_has_formed_is_no_incident() {
    let mut world = stranded_once();
    // Meanwhile no kubelet reaches the API server. The operator reaches rank 0.
    world.observed.formed = Some(2);
    world.seconds_pass(60);
    world.settle();
    assert_eq!(
        (world.generation(), world.observed.status.incidents.total),
        (2, 1)
    );
    world.is_ready(1, true);
    world.seconds_pass(60);
    // That it is not Ready any more is news.
    world.is_ready(1, false);
    world.seconds_pass(2);
    world.settle();
    assert_eq!(
        (world.generation(), world.observed.status.incidents.total),
        (3, 2)
    );
}

#[test]
fn a_new_operator_gives_members_time_before_it_takes_old_news_for_an_incident() {
    let mut world = stranded_once();
    // The generation was issued long ago. This operator has just begun to look, and knows nothing of what rank 0 said.
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
fn a_member_that_never_gets_ready_in_a_generation_that_has_formed_gets_the_next_one() {
    let mut world = stranded_once();
    world.observed.formed = Some(2);
    world.seconds_pass(121);
    world.settle();
    assert_eq!(world.generation(), 3);
}

#[test]
fn time_to_form_a_generation_begins_when_its_last_member_was_told() {
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
fn a_death_told_a_moment_after_those_whom_it_left_is_the_one_incident() {
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
fn a_node_whose_clock_is_ahead_holds_nothing_up() {
    let mut world = world(2).training();
    world.seconds_pass(60);
    world.is_ready(1, false);
    let ahead = world.now + SignedDuration::from_mins(5);
    world.observed.pods[1].ready_at = Some(ahead);
    world.settle();
    assert_eq!(world.generation(), 2);
}

/// All steps are done, by what rank 0 tells.
fn completes(world: &mut World) {
    progresses(world, 100, 100);
}

/// What rank 0 reports.
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
fn newcomers_that_wait_while_the_results_are_saved_are_no_incident() {
    let mut world = world(3).training();
    world.seconds_pass(60);
    completes(&mut world);
    world.is_ready(2, false);
    world.seconds_pass(120);
    world.settle();
    assert_eq!(world.observed.status.incidents.total, 0);
    assert_eq!(world.generation(), 1);
    // When none of them is ready, they have lost each other.
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
fn a_job_that_only_saves_its_results_does_not_grow() {
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
fn late_news_of_a_broken_generation_are_not_held_against_the_next() {
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
fn survivors_of_a_worker_that_left_are_no_second_incident() {
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
fn a_world_of_one_has_no_peers_to_lose() {
    let mut world = world(1).training();
    world.seconds_pass(60);
    world.is_ready(0, false);
    world.seconds_pass(300);
    world.settle();
    assert_eq!(world.observed.status.incidents.total, 0);
    assert_eq!(world.generation(), 1);
}

#[test]
fn a_member_that_forms_its_generation_is_not_stranded_because_its_nodes_clock_is_ahead() {
    let mut world = stranded_once();
    // The kubelet told that the member left the generation before, by a clock that is 20 s ahead.
    let ahead = world.now + SignedDuration::from_secs(20);
    world.observed.pods[1].ready_at = Some(ahead);
    world.seconds_pass(14);
    world.settle();
    assert_eq!(world.generation(), 2, "it is still given time to form");
}
