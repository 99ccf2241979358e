//! Which workers train together after a worker was lost, asked to leave, or added.

use std::time::Duration;

use roundhouse_contract::Action as Instruction;
use roundhouse_planner::testing::{World, raw_joining_job, world, world_of};
use roundhouse_planner::{PlanReason, Pod, PodPhase};

/// This number of workers train; two are enough.
fn elastic(workers: u32) -> World {
    let mut world = world(workers);
    world.job.min_replicas = 2.min(workers);
    world.lobby().trains()
}

trait Trains {
    fn trains(self) -> Self;
}

impl Trains for World {
    fn trains(mut self) -> Self {
        assert_eq!(self.settle().reason, PlanReason::Training);
        self
    }
}

/// Node ranks by pod, for the members of the newest generation.
fn places(world: &World) -> Vec<Option<u32>> {
    let newest = world.generation();
    let place = |pod: &Pod| {
        let document = pod.membership.as_ref()?;
        let joins = document.generation == newest && document.action == Instruction::Join;
        joins.then_some(document.node_rank)
    };
    world.observed.pods.iter().map(place).collect()
}

#[test]
fn survivors_continue_and_the_restarted_worker_joins() {
    let mut world = elastic(3);
    world.ends(0, 137, 40);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(places(&world), [None, Some(0), Some(1)]);
    assert_eq!(world.observed.status.incidents.total, 1);
    world.restarts(0);
    world.prepared(0);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(places(&world), [Some(2), Some(0), Some(1)]);
    assert_eq!(world.generation(), 3);
    assert_eq!(world.observed.status.incidents.total, 1);
}

#[test]
fn survivors_below_the_minimum_wait() {
    let mut world = elastic(2);
    world.job.replicas = 3;
    world.ends(1, 137, 40);
    world.settle();
    assert_eq!(world.state(), "BelowMinReplicas");
    assert_eq!(world.generations()[0], 1);
    world.restarts(1);
    world.prepared(1);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(places(&world)[..2], [Some(0), Some(1)]);
}

#[test]
fn drained_worker_is_asked_to_leave_without_incident() {
    let mut world = elastic(3);
    world.observed.pods[1].deleting = true;
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(places(&world)[..3], [Some(0), None, Some(1)]);
    let leaver = world.observed.pods[1].membership.as_ref().unwrap();
    assert_eq!((leaver.action, leaver.generation), (Instruction::Leave, 2));
    assert_eq!(world.observed.status.incidents.total, 0);
    assert_eq!(world.observed.pods[3].name, "digits-worker-1-1");
    world.ends(1, 143, 40);
    world.settle();
    assert_eq!(world.observed.status.incidents.total, 0);
}

#[test]
fn evicted_worker_is_not_an_incident() {
    let mut world = elastic(3);
    world.observed.pods[1].disrupted = true;
    world.ends(1, 137, 40);
    world.settle();
    assert_eq!(world.observed.status.incidents.total, 0);
}

#[test]
fn new_workers_join_together_within_the_window() {
    let mut world = elastic(2);
    world.job.replicas = 4;
    world.settle();
    world.prepared(2);
    world.observed.pods[2].ready_at = Some(world.now);
    let plan = world.settle();
    assert_eq!(places(&world), [Some(0), Some(1), None, None]);
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(10)));
    let mut both = world.clone();
    both.prepared(3);
    both.settle();
    assert_eq!(places(&both), [Some(0), Some(1), Some(2), Some(3)]);
    world.seconds_pass(10);
    world.settle();
    assert_eq!(places(&world), [Some(0), Some(1), Some(2), None]);
}

#[test]
fn surplus_workers_leave_and_the_others_continue() {
    let mut world = elastic(4);
    world.job.replicas = 2;
    world.settle();
    assert_eq!(places(&world), [Some(0), Some(1)]);
    assert_eq!(world.observed.status.incidents.total, 0);
}

#[test]
fn death_while_issuing_raises_the_next_generation() {
    let mut world = elastic(4);
    world.job.replicas = 3;
    let raise = world.plan();
    world.carry_out(&raise, usize::MAX);
    let issue = world.plan();
    world.carry_out(&issue, 1);
    world.ends(0, 137, 50);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(places(&world), [None, Some(0), Some(1)]);
}

#[test]
fn simultaneous_deaths_are_one_incident() {
    let mut world = elastic(2);
    for at in 0..2 {
        world.ends(at, 137, 40);
        world.restarts(at);
    }
    world.settle();
    for at in 0..2 {
        world.prepared(at);
    }
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(places(&world), [Some(0), Some(1)]);
    assert_eq!(world.observed.status.incidents.total, 1);
}

#[test]
fn job_with_missing_workers_says_why() {
    let mut world = elastic(2);
    world.job.replicas = 3;
    world.settle();
    world.observed.pods[2].unschedulable = Some("0/2 nodes: Insufficient nvidia.com/gpu".into());
    assert_eq!(world.settle().reason, PlanReason::Training);
    let words = &world.observed.status.front().unwrap().message;
    assert!(words.contains("Insufficient nvidia.com/gpu"), "{words}");
    world.observed.pods[2].unschedulable = None;
    world.settle();
    let words = &world.observed.status.front().unwrap().message;
    assert!(!words.contains("Insufficient"), "{words}");
}

#[test]
fn first_generation_waits_for_all_workers() {
    let mut world = world(2);
    world.settle();
    world.prepared(0);
    world.settle();
    assert_eq!(world.generations(), [0, 0]);
    assert_eq!(
        world.observed.status.front().unwrap().message,
        "1 of 2 workers ready"
    );
    world.prepared(1);
    world.settle();
    assert_eq!(world.generations(), [1, 1]);
    assert_eq!(world.state(), "Training");
}

#[test]
fn generation_is_stored_before_it_is_issued() {
    let mut world = world(2).lobby();
    let plan = world.plan();
    assert_eq!(plan.reason, PlanReason::RaisingGeneration);
    assert!(plan.actions.is_empty());
    world.carry_out(&plan, usize::MAX);
    assert_eq!(world.plan().reason, PlanReason::IssuingMembership);
}

#[test]
fn half_issued_generation_is_completed() {
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
fn death_before_issue_raises_a_new_number() {
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

fn joining(workers: u32) -> World {
    world_of(&raw_joining_job(workers))
}

#[test]
fn survivors_of_a_joining_script_do_not_restart() {
    let mut world = joining(3);
    world.job.min_replicas = 2;
    let mut world = world.training();
    world.ends(1, 137, 40);
    world.settle();
    assert_eq!(world.generations(), [2, 1, 2]);
    let restarts = |at: usize| world.observed.pods[at].container.restarts;
    assert_eq!((restarts(0), restarts(2)), (0, 0));
    assert_eq!(world.observed.pods[0].phase, PodPhase::Running);
    assert_eq!(world.observed.status.incidents.total, 1);
}
