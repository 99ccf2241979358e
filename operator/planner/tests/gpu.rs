//! Which resources are GPUs. If an administrator changes that while jobs run, each job keeps its
//! number of processes.
#![allow(clippy::unwrap_used)]

use roundhouse_api::TrainingJob;
use roundhouse_contract::ExpectedDevice;
use roundhouse_planner::testing::{World, raw_job, world};
use roundhouse_planner::{
    Action, Plan, PlanReason, Rejection, Validation, gpu, validate, validate_with,
};
use serde_json::json;

const OTHER: &str = "nvidia.com/gpu,example.com/a100";

/// A job of two workers with four devices each.
fn raw(device: &str) -> TrainingJob {
    let mut raw = raw_job(2);
    let limits = json!({"limits": {device: "4"}});
    let containers = json!([{"name": "trainer", "resources": limits}]);
    let template = json!({"spec": {"containers": containers}});
    raw.spec.workers.template = Some(serde_json::from_value(template).unwrap());
    raw
}

/// The job as an operator with this list of GPUs sees it.
fn sees(world: &mut World, raw: &TrainingJob, listed: &str) {
    let mut raw = raw.clone();
    raw.status = Some(world.observed.status.clone());
    raw.spec.suspend = world.job.suspend;
    let listed: gpu::Listed = listed.parse().unwrap();
    let Validation { job, refusal } = validate_with(&raw, &listed, &world.observed.pods);
    world.job = job;
    world.rejection = refusal.map(Rejection::from);
}

/// The job trains, started by an operator with this list of GPUs.
fn training(raw: &TrainingJob, listed: &str) -> World {
    let mut world = world(2);
    sees(&mut world, raw, listed);
    world.training()
}

fn procs(world: &World) -> Vec<(Option<u32>, Option<u32>)> {
    let pods = world.observed.pods.iter();
    pods.map(|pod| {
        let (built, place) = (pod.built_from.as_ref(), pod.membership.as_ref());
        (
            built.and_then(|built| built.procs_per_worker),
            place.map(|place| place.procs_per_worker),
        )
    })
    .collect()
}

fn does_nothing(plan: &Plan, world: &World) -> bool {
    plan.actions.is_empty() && plan.status == world.observed.status
}

#[test]
fn running_job_keeps_its_processes_if_gpu_names_change() {
    for (device, before, after, num) in [
        ("example.com/a100", gpu::USUAL, OTHER, 1),
        ("example.com/a100", OTHER, gpu::USUAL, 4),
        ("amd.com/gpu", gpu::USUAL, OTHER, 4),
    ] {
        let raw = raw(device);
        let mut world = training(&raw, before);
        let device_before = world.job.expected_device;
        sees(&mut world, &raw, after);
        assert_eq!(world.job.procs_per_worker, num, "{device}");
        assert_eq!(world.job.expected_device, device_before, "{device}");
        assert!(does_nothing(&world.plan(), &world), "{device}");
        world.vanishes(1);
        world.settle();
        world.prepared(1);
        sees(&mut world, &raw, after);
        assert_eq!(world.settle().reason, PlanReason::Training);
        assert_eq!(procs(&world), vec![(Some(num), Some(num)); 2], "{device}");
        let size = world.observed.status.membership.as_ref();
        assert_eq!(size.map(|it| it.world_size), Some(2 * num));
    }
}

#[test]
fn running_job_that_would_be_refused_gets_new_workers() {
    let raw = raw("nvidia.com/gpu.shared");
    let mut world = training(&raw, "nvidia.com/gpu.shared");
    sees(&mut world, &raw, gpu::USUAL);
    assert_eq!(world.rejection, None);
    assert!(does_nothing(&world.plan(), &world));
    world.vanishes(1);
    let plan = world.plan();
    let creates = |it: &Action| matches!(it, Action::CreateWorker { .. });
    assert!(plan.actions.iter().any(creates));
}

#[test]
fn memberships_give_the_processes_of_old_records() {
    let raw = raw("example.com/a100");
    let mut world = training(&raw, OTHER);
    for pod in &mut world.observed.pods {
        let built = pod.built_from.as_mut().unwrap();
        (built.procs_per_worker, built.expected_device) = (None, None);
    }
    sees(&mut world, &raw, gpu::USUAL);
    assert_eq!(world.job.procs_per_worker, 4);
}

#[test]
fn resumed_job_has_the_processes_of_the_new_setting() {
    let raw = raw("example.com/a100");
    let mut world = training(&raw, gpu::USUAL);
    world.job.suspend = true;
    world.settle();
    assert!(world.observed.pods.is_empty());
    world.job.suspend = false;
    sees(&mut world, &raw, OTHER);
    assert_eq!(world.job.procs_per_worker, 4);
    let device = Some(ExpectedDevice::of_gpus(4));
    assert_eq!(world.job.expected_device, device);
}

#[test]
fn invalid_number_of_processes_in_a_pod_is_ignored() {
    let raw = raw("nvidia.com/gpu");
    let mut world = training(&raw, gpu::USUAL);
    for number in [0, u32::MAX] {
        for pod in &mut world.observed.pods {
            let built = pod.built_from.as_mut().unwrap();
            built.procs_per_worker = Some(number);
        }
        sees(&mut world, &raw, gpu::USUAL);
        assert_eq!(world.job.procs_per_worker, 4);
    }
}

#[test]
fn number_of_processes_is_the_number_of_gpus() {
    let mut job = raw_job(1);
    job.spec.workers.template = serde_json::from_value(serde_json::json!({"spec": {"containers": [
        {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}}))
    .unwrap();
    assert_eq!(validate(&job).unwrap().procs_per_worker, 8);
}
