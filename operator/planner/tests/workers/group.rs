//! The PodGroup of a job with a gang scheduler: when it exists, and its content.

use std::time::Duration;

use roundhouse_api::Gang;
use roundhouse_planner::testing::{World, raw_gang_job, raw_job, world_of};
use roundhouse_planner::{Action, Event, GroupWrites, ObservedGroup, PlanReason, PodGroup, Repair};

/// A job with Coscheduling whose workers train.
fn trains(workers: u32) -> World {
    world_of(&raw_gang_job(workers, Gang::Coscheduling)).training()
}

fn group(world: &World) -> Option<&PodGroup> {
    match &world.observed.group {
        ObservedGroup::Ours { group, .. } => Some(group),
        ObservedGroup::Missing
        | ObservedGroup::Impossible(_)
        | ObservedGroup::Foreign
        | ObservedGroup::ForeignLeaving => None,
    }
}

fn creates(actions: &[Action]) -> usize {
    let creates = |action: &&Action| matches!(action, Action::CreateWorker { .. });
    actions.iter().filter(creates).count()
}

#[test]
fn group_is_created_before_the_first_worker() {
    let plan = world_of(&raw_gang_job(2, Gang::Volcano)).plan();
    let made = plan
        .actions
        .iter()
        .position(|action| matches!(action, Action::ApplyPodGroup { .. }));
    assert_eq!(creates(&plan.actions[..made.unwrap()]), 0);
    assert_eq!(creates(&plan.actions), 2);
    let mut alone = world_of(&raw_job(2));
    alone.settle();
    assert_eq!(alone.observed.group, ObservedGroup::Missing);
}

#[test]
fn group_minimum_follows_the_job() {
    let mut elastic = raw_gang_job(4, Gang::Coscheduling);
    elastic.spec.workers.min_replicas = Some(2);
    let mut world = world_of(&elastic).training();
    assert_eq!(group(&world).unwrap().min_member, 2);
    world.job.min_replicas = 3;
    let plan = world.plan();
    assert!(
        matches!(&plan.actions[..], [Action::ApplyPodGroup { group, uid: Some(_), .. }] if group.min_member == 3),
        "{:?}",
        plan.actions
    );
    world.settle();
    assert_eq!(group(&world).unwrap().min_member, 3);
}

#[test]
fn group_fields_of_the_gang_scheduler_are_kept() {
    let mut world = world_of(&raw_gang_job(2, Gang::Volcano)).training();
    if let ObservedGroup::Ours { group, .. } = &mut world.observed.group {
        group.queue = Some("default".to_owned());
        group.priority_class = Some("low".to_owned());
    }
    assert!(world.plan().actions.is_empty());
}

#[test]
fn suspended_or_ended_job_has_no_group() {
    let mut world = trains(2);
    world.job.suspend = true;
    world.settle();
    assert_eq!(group(&world), None);
    world.job.suspend = false;
    world.settle();
    assert!(group(&world).is_some());

    let mut world = trains(1);
    world.ends(0, 0, 8);
    world.settle();
    assert_eq!(world.state(), "Completed");
    assert_eq!(group(&world), None);
}

#[test]
fn missing_gang_scheduler_is_reported_with_advice() {
    for (gang, to_install) in [
        (Gang::Coscheduling, "scheduler-plugins"),
        (Gang::Volcano, "Volcano"),
        (Gang::Kubernetes, "1.37"),
    ] {
        let mut world = world_of(&raw_gang_job(2, gang));
        let words = "podgroups are not served".to_owned();
        world.observed.group = ObservedGroup::Impossible(words);
        let plan = world.settle();
        assert_eq!(plan.reason, PlanReason::GangSchedulerMissing);
        assert!(world.observed.pods.is_empty() && plan.requeue_after.is_some());
        assert_eq!(world.state(), "GangSchedulerMissing");
        let message = &world.observed.status.front().unwrap().message;
        assert!(
            message.contains("not served") && message.contains(to_install),
            "{message}"
        );
        assert!(plan.events.is_empty(), "reported once");
        world.observed.group = ObservedGroup::Missing;
        world.settle();
        assert_eq!(world.observed.pods.len(), 2);
    }
}

#[test]
fn workers_keep_training_without_the_kind_of_their_group() {
    let mut world = trains(2);
    world.observed.group = ObservedGroup::Impossible("gone".to_owned());
    assert_eq!(world.settle().reason, PlanReason::Training);
    let message = &world.observed.status.front().unwrap().message;
    assert!(message.contains("gone"), "{message}");
}

#[test]
fn foreign_group_of_the_same_name_is_not_changed() {
    let mut world = world_of(&raw_gang_job(2, Gang::Volcano));
    world.observed.group = ObservedGroup::Foreign;
    let plan = world.settle();
    assert_eq!(plan.reason, PlanReason::NameTaken);
    assert!(world.state() == "NameTaken" && world.observed.pods.is_empty());
    let message = &world.observed.status.front().unwrap().message;
    assert!(message.contains("PodGroup digits"), "{message}");
}

#[test]
fn terminating_group_gets_no_worker() {
    let mut world = world_of(&raw_gang_job(2, Gang::Coscheduling)).lobby();
    world.vanishes(1);
    if let ObservedGroup::Ours { deleting, .. } = &mut world.observed.group {
        *deleting = true;
    }
    assert!(world.plan().actions.is_empty());
    world.observed.group = ObservedGroup::Missing;
    assert_eq!(creates(&world.plan().actions), 1);
}

/// Another client deletes the group, which then terminates.
fn is_deleted(world: &mut World) {
    if let ObservedGroup::Ours { deleting, .. } = &mut world.observed.group {
        *deleting = true;
    }
}

#[test]
fn terminating_group_with_pods_is_used_by_kubernetes() {
    for (gang, expected) in [(Gang::Kubernetes, 1), (Gang::Volcano, 0)] {
        for mut world in [
            world_of(&raw_gang_job(2, gang)).training(),
            world_of(&raw_gang_job(2, gang)).lobby(),
        ] {
            world.vanishes(1);
            is_deleted(&mut world);
            assert_eq!(creates(&world.plan().actions), expected, "{gang:?}");
            world.observed.pods[0].deleting = true;
            assert_eq!(
                creates(&world.plan().actions),
                0,
                "{gang:?}: it is about to go"
            );
            world.vanishes(0);
            assert_eq!(
                creates(&world.plan().actions),
                0,
                "{gang:?}: no pod is left"
            );
        }
    }
}

#[test]
fn terminating_group_in_use_follows_the_job() {
    let mut world = world_of(&raw_gang_job(4, Gang::Kubernetes)).training();
    is_deleted(&mut world);
    (world.job.replicas, world.job.min_replicas) = (2, 2);
    let applied = |action: &Action| match action {
        Action::ApplyPodGroup { group, .. } => Some(group.min_member),
        _ => None,
    };
    let plan = world.plan();
    assert_eq!(plan.actions.iter().find_map(applied), Some(2), "{plan:?}");
}

#[test]
fn job_waits_for_the_group_of_an_earlier_job() {
    let mut world = world_of(&raw_gang_job(2, Gang::Kubernetes));
    world.observed.group = ObservedGroup::ForeignLeaving;
    world.settle();
    assert_ne!(world.state(), "NameTaken");
    assert!(world.observed.pods.is_empty());
    world.observed.group = ObservedGroup::Missing;
    world.settle();
    assert_eq!(world.observed.pods.len(), 2);
}

#[test]
fn priority_is_in_the_group_of_kubernetes() {
    let mut raw = raw_gang_job(2, Gang::Kubernetes);
    raw.spec.scheduling.priority_class_name = Some("low".to_owned());
    let mut world = world_of(&raw);
    world.settle();
    let group = group(&world).unwrap();
    assert_eq!(
        (group.min_member, group.priority_class.as_deref()),
        (2, Some("low"))
    );
    let pod = world.job.template.spec.as_ref().unwrap();
    assert_eq!(pod.scheduler_name, None, "Kubernetes' own is the default");
}

#[test]
fn queue_and_priority_are_in_the_group_of_volcano() {
    let mut raw = raw_gang_job(2, Gang::Volcano);
    raw.spec.scheduling.queue_name = Some("research".to_owned());
    raw.spec.scheduling.priority_class_name = Some("low".to_owned());
    let mut world = world_of(&raw);
    world.settle();
    let group = group(&world).unwrap();
    assert_eq!(group.queue.as_deref(), Some("research"));
    assert_eq!(group.priority_class.as_deref(), Some("low"));
    let pod = world.job.template.spec.as_ref().unwrap();
    assert_eq!(pod.priority_class_name.as_deref(), Some("low"));
    assert_eq!(pod.scheduler_name.as_deref(), Some("volcano"));
}

/// Another client changes or deletes the PodGroup each time. Without pauses the
/// writes would never end.
#[test]
fn reverted_group_is_repaired_after_a_pause() {
    let mut world = trains(2);
    let says = |min_member| PodGroup {
        min_member,
        ..PodGroup::default()
    };
    world.observed.group = ObservedGroup::Ours {
        uid: "uid".to_owned(),
        group: says(1),
        deleting: false,
    };
    assert_eq!(world.plan().actions.len(), 1, "at once");
    let pause = Duration::from_secs(3);
    let writes = |changed| GroupWrites {
        repaired_to: Some(says(2)),
        changed,
        deleted: Repair::Now,
    };
    world.observed.group_writes = writes(Repair::Later(pause));
    let plan = world.plan();
    assert_eq!((plan.actions, plan.events), (vec![], vec![]));
    assert_eq!(plan.requeue_after, Some(pause));
    world.job.min_replicas = 1;
    assert!(world.plan().actions.is_empty(), "it says that already");
    world.job.min_replicas = 2;
    world.observed.group_writes.repaired_to = Some(says(1));
    assert_eq!(world.plan().actions.len(), 1, "the job itself asks for it");
    world.observed.group_writes = writes(Repair::Again);
    let plan = world.plan();
    let [event] = plan.events.as_slice() else {
        panic!("{:?}", plan.events);
    };
    assert!(event.message.contains("PodGroup digits"), "{event:?}");
    assert_eq!(plan.actions.len(), 1);
}

/// Coscheduling treats a pod whose PodGroup does not exist as a pod without one.
#[test]
fn no_pod_is_created_while_its_group_is_postponed() {
    let mut world = world_of(&raw_gang_job(2, Gang::Coscheduling));
    let pause = Duration::from_secs(3);
    world.observed.group_writes.deleted = Repair::Later(pause);
    let plan = world.plan();
    assert!(plan.actions.is_empty(), "{:?}", plan.actions);
    assert_eq!(plan.requeue_after, Some(pause));
    let reverted = |event: &&Event| event.reason == "RepairReverted";
    assert_eq!(plan.events.iter().filter(reverted).count(), 1);
    let message = plan.status.front().unwrap().message.clone();
    assert!(
        message.contains("PodGroup digits was deleted again"),
        "{message}"
    );
    world.settle();
    assert!(world.plan().events.is_empty(), "reported once");
    world.observed.group_writes.deleted = Repair::Again;
    let plan = world.plan();
    assert_eq!(creates(&plan.actions), 2);
    let is_reported = plan
        .events
        .iter()
        .any(|event| event.message.contains("PodGroup digits"));
    assert!(is_reported, "{:?}", plan.events);
}
