//! The Service, the NetworkPolicy and the pods of a job: creation, drift, and taken names.

use std::time::Duration;

use roundhouse_api::{ConditionType, NetworkPolicyMode};
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, PlanReason, Pod, PodPhase, Presence, Repair};

use crate::{created, trains};

#[test]
fn new_job_gets_all_its_objects_at_once() {
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
fn foreign_object_of_the_same_name_is_not_changed() {
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
    assert!(world.plan().events.is_empty(), "reported once");
}

const fn drifted(repair: Repair) -> Presence {
    Presence::Drifted { version: 7, repair }
}

#[test]
fn drift_is_repaired_and_workers_stay() {
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
fn reverted_repair_is_repeated_after_a_pause() {
    let mut world = world(2).training();
    let pause = Duration::from_secs(3);
    world.observed.service = drifted(Repair::Later(pause));
    let plan = world.plan();
    assert_eq!((plan.actions, plan.events), (vec![], vec![]));
    assert_eq!(plan.requeue_after, Some(pause));
    world.observed.service = drifted(Repair::Again);
    let plan = world.plan();
    assert_eq!(plan.actions, [Action::RepairService { version: 7 }]);
    let [event] = plan.events.as_slice() else {
        panic!("{:?}", plan.events);
    };
    assert!(event.message.contains("Service digits"), "{event:?}");
}

#[test]
fn deleted_object_is_created_again_after_a_pause() {
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
    let [event] = plan.events.as_slice() else {
        panic!("{:?}", plan.events);
    };
    let words = "NetworkPolicy digits was deleted again";
    assert!(event.message.starts_with(words), "{event:?}");
}

#[test]
fn pods_of_an_earlier_job_are_not_adopted() {
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
fn taken_pod_name_costs_an_attempt() {
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
fn edited_attempt_label_causes_no_name_conflict() {
    let mut world = trains(2);
    world.observed.pods[1].attempt = u32::MAX;
    world.is_deleted(1);
    world.lingering = true;
    world.settle();
    assert_eq!(world.observed.pods.len(), 3);
    assert_eq!(world.observed.pods[2].name, "digits-worker-1-1");
}

#[test]
fn taken_name_only_prevents_new_pods() {
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
    assert_eq!(world.observed.pods.len(), 1, "the surplus leaves");
}
