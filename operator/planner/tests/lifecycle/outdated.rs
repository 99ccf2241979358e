//! All pods of a run are built from the same spec and image, across edits of the job and upgrades
//! of the operator.

use roundhouse_contract::BuiltFrom;
use roundhouse_planner::testing::{TRAINER_IMAGE, World, raw_job, world};
use roundhouse_planner::{Action, DeleteReason, PlanReason, ValidatedJob, validate};
use serde_json::json;

/// The same job with another image in its template.
fn edited(world: &World) -> ValidatedJob {
    let mut raw = raw_job(world.job.replicas);
    let containers = json!([{"name": "trainer", "image": "mine:2"}]);
    let template = json!({"spec": {"containers": containers}});
    raw.spec.workers.template = Some(serde_json::from_value(template).unwrap());
    raw.metadata.generation = Some(world.job.generation + 2);
    validate(&raw).unwrap()
}

fn images(world: &World) -> Vec<String> {
    let pods = world.observed.pods.iter();
    pods.map(|pod| pod.built_from.clone().unwrap().trainer_image)
        .collect()
}

#[test]
fn missed_edit_replaces_all_workers_after_they_left() {
    let mut world = world(2).training();
    world.job = edited(&world);
    world.lingering = true;
    let plan = world.plan();
    assert_eq!(plan.reason, PlanReason::Resuming);
    let outdated = |action: &Action| {
        matches!(
            action,
            Action::DeletePod {
                reason: DeleteReason::Outdated,
                ..
            }
        )
    };
    assert!(plan.actions.len() == 2 && plan.actions.iter().all(outdated));
    assert_eq!(plan.events.len(), 1);
    world.carry_out(&plan, usize::MAX);
    let waits = world.settle();
    assert_eq!(waits.reason, PlanReason::Resuming);
    assert_eq!(
        world.observed.pods.len(),
        2,
        "none is made before they have left"
    );
    world.observed.pods.clear();
    world.lingering = false;
    world.settle();
    let specs = world
        .observed
        .pods
        .iter()
        .map(|pod| pod.built_from.clone().unwrap().spec);
    assert_eq!(
        specs.collect::<Vec<_>>(),
        vec![world.job.built_from.clone(); 2]
    );
    for at in 0..2 {
        world.prepared(at);
    }
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generations(), [2, 2]);
}

#[test]
fn early_resumption_waits_for_terminating_workers() {
    let mut world = world(2).training();
    world.job.suspend = true;
    world.lingering = true;
    let plan = world.plan();
    // All writes are done except for the status.
    for action in &plan.actions {
        world.act(action);
    }
    world.job = edited(&world);
    let plan = world.settle();
    assert_eq!(plan.reason, PlanReason::Resuming);
    assert_eq!(world.observed.pods.len(), 2);
}

#[test]
fn edit_outside_of_pods_replaces_no_worker() {
    let mut world = world(2).training();
    let mut raw = raw_job(2);
    raw.spec.elastic.join_window_seconds = 7;
    raw.metadata.generation = Some(9);
    world.job = validate(&raw).unwrap();
    let plan = world.settle();
    assert_eq!(plan.reason, PlanReason::Training);
    assert!(plan.actions.is_empty());
}

#[test]
fn other_fingerprint_version_replaces_no_worker() {
    let mut world = world(2).training();
    world.job.built_from = "another fingerprint".to_owned();
    assert_eq!(world.settle().reason, PlanReason::Training);
    // An edit that affects no pod, and pods of a version with another fingerprint algorithm.
    for pod in &mut world.observed.pods {
        pod.built_from.as_mut().unwrap().spec_version += 1;
    }
    world.job.generation += 1;
    assert_eq!(world.settle().reason, PlanReason::Training);
}

/// If this fails, an upgrade gives jobs other fingerprints, and their workers would be replaced at
/// the next edit. Raise `BuiltFrom::SPEC_VERSION`, and write the new fingerprints here.
#[test]
fn fingerprints_are_stable_across_versions() {
    let plain = validate(&raw_job(2)).unwrap().built_from;
    let mut raw = serde_json::to_value(raw_job(2)).unwrap();
    raw["spec"]["workers"]["template"] = json!({
        "metadata": {"labels": {"a": "b"}},
        "spec": {"priorityClassName": "low", "containers": [{
            "name": "trainer", "image": "mine:2", "env": [{"name": "A", "value": "b"}],
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
        }]},
    });
    raw["spec"]["checkpoint"] = json!({
        "volume": {"persistentVolumeClaim": {"claimName": "c"}}, "everySteps": 5, "everySeconds": 60,
    });
    raw["spec"]["scheduling"] = json!({"gang": "Volcano", "queueName": "q", "topologyKey": "rack"});
    raw["spec"]["stallTimeoutSeconds"] = json!(600);
    raw["spec"]["elastic"] = json!({"peerFailureWindowSeconds": 3});
    let full = validate(&serde_json::from_value(raw).unwrap()).unwrap();
    assert_eq!(BuiltFrom::SPEC_VERSION, 1);
    let expected = ("755651389d941d6c", "4775012638996d37");
    assert_eq!((&*plain, &*full.built_from), expected);
}

#[test]
fn pods_without_a_record_stay() {
    let mut world = world(2).training();
    for pod in &mut world.observed.pods {
        pod.built_from = None;
    }
    world.job = edited(&world);
    assert_eq!(world.settle().reason, PlanReason::Training);
}

#[test]
fn rejected_job_keeps_its_pods() {
    let mut world = world(2).training();
    world.job = edited(&world);
    world.is_rejected("not today");
    let plan = world.settle();
    assert!(plan.actions.is_empty());
    assert_eq!(world.observed.pods.len(), 2);
}

#[test]
fn replacement_has_the_image_of_the_other_pods() {
    let mut world = world(2).training();
    world.trainer_image = "trainer:2".to_owned();
    world.observed.pods.remove(1);
    world.settle();
    assert_eq!(images(&world), [TRAINER_IMAGE, TRAINER_IMAGE]);
}

#[test]
fn resumed_job_has_the_image_of_the_upgraded_operator() {
    let mut world = world(2).training();
    world.trainer_image = "trainer:2".to_owned();
    world.job.suspend = true;
    world.settle();
    assert!(world.observed.pods.is_empty());
    world.job.suspend = false;
    world.settle();
    assert_eq!(images(&world), ["trainer:2", "trainer:2"]);
}
