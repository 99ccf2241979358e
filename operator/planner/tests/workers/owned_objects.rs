//! The Service, the NetworkPolicy and the pods of a job: creation, drift, and taken names.

use std::time::Duration;

use roundhouse_api::{ConditionType, NetworkPolicyMode};
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, PlanReason, Pod, PodPhase, Presence, Repair};

use crate::{created, trains};

#[test]
fn a_new_job_gets_its_service_policy_and_all_workers_at_once() {
    let plan = world(2).plan();
    assert_eq!(
        plan.actions[..2],
        [Action::CreateService, Action::CreateNetworkPolicy]
    );
    assert_eq!(created(&plan), [(0, 0), (1, 0)]);
    assert_eq!(plan.status.front().unwrap().reason, "WaitingForWorkers");
    assert!(plan.status.is_true(ConditionType::Accepted));
}

#[test]
fn a_strangers_object_of_our_name_is_named_and_nothing_is_touched() {
    let mut world = world(2);
    world.observed.service = Presence::Foreign;
    let plan = world.plan();
    assert_eq!(plan.reason, PlanReason::NameTaken);
    assert!(plan.actions.is_empty());
    assert!(
        plan.status
            .front()
            .unwrap()
            .message
            .contains("Service digits")
    );
    world.settle();
    assert!(world.plan().events.is_empty(), "told once");
}

const fn drifted(repair: Repair) -> Presence {
    Presence::Drifted { version: 7, repair }
}

#[test]
fn what_somebody_changed_of_the_jobs_own_is_mended_and_workers_stay() {
    let mut world = world(2).training();
    let version = 7;
    world.observed.service = drifted(Repair::Now);
    world.observed.network_policy = drifted(Repair::Now);
    let plan = world.plan();
    let repaired = [
        Action::RepairService { version },
        Action::RepairNetworkPolicy { version },
    ];
    assert_eq!(plan.actions, repaired);
    assert_eq!(plan.reason, PlanReason::Training);
    world.job.network_policy = NetworkPolicyMode::None;
    assert_eq!(
        world.plan().actions,
        repaired[..1],
        "that policy is not ours to keep"
    );
    world.settle();
    assert_eq!(world.observed.service, Presence::Ours);
}

#[test]
fn what_somebody_changes_back_is_mended_again_after_a_pause_and_told() {
    let mut world = world(2).training();
    let pause = Duration::from_secs(3);
    world.observed.service = drifted(Repair::Later(pause));
    let plan = world.plan();
    assert_eq!((plan.actions, plan.events), (vec![], vec![]));
    assert_eq!(plan.requeue_after, Some(pause));
    world.observed.service = drifted(Repair::Again);
    let plan = world.plan();
    assert_eq!(plan.actions, [Action::RepairService { version: 7 }]);
    let [told] = plan.events.as_slice() else {
        panic!("{:?}", plan.events);
    };
    assert!(told.message.contains("Service digits"), "{told:?}");
}

#[test]
fn what_somebody_deletes_each_time_is_made_anew_after_a_pause_and_told() {
    let mut world = world(2).training();
    let pause = Duration::from_secs(3);
    let repair = Repair::Later(pause);
    world.observed.network_policy = Presence::Deleted { repair };
    let plan = world.plan();
    assert_eq!((plan.actions, plan.events), (vec![], vec![]));
    assert_eq!(plan.requeue_after, Some(pause));
    let repair = Repair::Again;
    world.observed.network_policy = Presence::Deleted { repair };
    let plan = world.plan();
    assert_eq!(plan.actions, [Action::CreateNetworkPolicy]);
    let [told] = plan.events.as_slice() else {
        panic!("{:?}", plan.events);
    };
    let words = "NetworkPolicy digits was deleted again";
    assert!(told.message.starts_with(words), "{told:?}");
}

#[test]
fn pods_of_an_earlier_job_of_the_same_name_are_not_adopted() {
    let mut world = world(1);
    let theirs = Pod {
        name: "digits-worker-0-0".into(),
        uid: "theirs".into(),
        index: Some(0),
        phase: PodPhase::Running,
        ready: true,
        ..Pod::default()
    };
    world.observed.pods.push(theirs);
    world.settle();
    let names = |world: &World| -> Vec<String> {
        let pods = world.observed.pods.iter();
        pods.map(|pod| pod.name.clone()).collect()
    };
    let expected = ["digits-worker-0-0", "digits-worker-0-1"];
    assert_eq!(names(&world), expected, "the worker takes its next attempt");
    assert_eq!(world.state(), "WaitingForWorkers");
    world.prepared(1);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert!(world.observed.pods[0].membership.is_none());
}

#[test]
fn a_pod_of_another_owner_that_is_not_watched_costs_an_attempt() {
    let mut world = world(2);
    world.observed.taken = vec![
        "Pod digits-worker-1-0".into(),
        "Pod digits-worker-1-1".into(),
    ];
    let created = world.plan().actions.into_iter().filter_map(|it| match it {
        Action::CreateWorker { index, attempt, .. } => Some((index, attempt)),
        _ => None,
    });
    assert_eq!(created.collect::<Vec<_>>(), [(0, 0), (1, 2)]);
}

#[test]
fn an_edited_attempt_label_does_not_ask_for_a_name_that_exists() {
    let mut world = trains(2);
    world.observed.pods[1].attempt = u32::MAX;
    world.is_deleted(1);
    world.lingering = true;
    world.settle();
    assert_eq!(world.observed.pods.len(), 3);
    assert_eq!(world.observed.pods[2].name, "digits-worker-1-1");
}

#[test]
fn a_taken_name_keeps_a_job_that_trains_from_nothing_but_making_pods() {
    let mut world = trains(3);
    world.observed.service = Presence::Foreign;
    world.ends(0, 137, 40);
    world.settle();
    let status = &world.observed.status;
    assert_eq!((world.state(), status.incidents.total), ("Training", 1));
    assert_eq!(status.membership.as_ref().unwrap().nodes, 2);
    let message = &status.front().unwrap().message;
    assert!(message.contains("Service digits exists"), "{message}");
    world.vanishes(0);
    assert!(created(&world.plan()).is_empty());
    world.job.replicas = 1;
    world.settle();
    assert_eq!(world.observed.pods.len(), 1, "what is too much goes");
}
