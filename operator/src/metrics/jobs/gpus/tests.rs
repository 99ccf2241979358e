use std::time::Duration;

use roundhouse_planner::testing::{World, raw_job, world};
use roundhouse_planner::{PodPhase, validate};
use serde_json::json;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn close(found: (f64, f64), expected: (f64, f64)) -> bool {
    (found.0 - expected.0).abs() < 1e-9 && (found.1 - expected.1).abs() < 1e-9
}

/// GPUs of the job's pods, which have two each.
fn gpus(world: &World) -> Gpus {
    Gpus::of(&world.observed.pods, &world.observed.status, 2)
}

/// Two workers that train on nodes.
fn training() -> World {
    let mut world = world(2);
    world.settle();
    for at in 0..2 {
        world.is_on(at, "n1");
        world.prepared(at);
    }
    world.settle();
    world
}

#[test]
fn a_pod_holds_its_gpus_from_scheduled_to_ended() {
    let mut world = world(2);
    world.settle();
    assert_eq!(gpus(&world), Gpus::default(), "no pod is scheduled");
    world.is_on(0, "n1");
    assert_eq!(gpus(&world).held, 2, "it pulls its image");
    world.is_on(1, "n2");
    world.prepared(0);
    world.prepared(1);
    world.ends(0, 74, 3);
    assert_eq!(gpus(&world).held, 4, "its container is restarted");
    world.is_deleted(0);
    assert_eq!(gpus(&world).held, 4, "it is terminating");
    world.vanishes(0);
    assert_eq!(gpus(&world).held, 2);
    world.fails(0, "Evicted");
    assert_eq!(gpus(&world).held, 0);
}

#[test]
fn spares_hold_their_gpus_and_do_not_train() {
    let mut world = world(2);
    world.job.spares = 1;
    world.settle();
    for at in 0..3 {
        world.is_on(at, "n1");
        world.prepared(at);
    }
    world.settle();
    let held = Gpus {
        held: 6,
        training: 4,
    };
    assert_eq!(gpus(&world), held);
}

#[test]
fn gpus_train_while_their_generation_does() {
    let mut world = training();
    let all = Gpus {
        held: 4,
        training: 4,
    };
    assert_eq!(gpus(&world), all);
    world.ends(0, 74, 3);
    assert_eq!(gpus(&world).training, 2, "the operator has not seen it yet");
    world.settle();
    assert_eq!(gpus(&world).training, 0, "the generation is broken");
    assert_eq!(gpus(&world).held, 4);
    world.restarts(0);
    world.prepared(0);
    world.settle();
    assert_eq!(gpus(&world), all, "the next generation trains");
}

#[test]
fn joining_worker_holds_gpus_and_does_not_train() {
    let mut world = training();
    world.job.replicas = 3;
    world.settle();
    world.is_on(2, "n3");
    let expected = Gpus {
        held: 6,
        training: 4,
    };
    assert_eq!(gpus(&world), expected);
    world.is_unreachable(1, true);
    assert_eq!(gpus(&world).training, 2);
}

#[test]
fn gpus_of_foreign_pods_do_not_count() {
    let mut world = training();
    world.observed.pods[0].ours = false;
    assert_eq!(gpus(&world).held, 2);
}

#[test]
fn succeeded_pod_holds_no_gpus() {
    let mut world = training();
    world.observed.pods[0].phase = PodPhase::Succeeded;
    assert_eq!(gpus(&world).held, 2);
}

#[test]
fn gpus_of_all_containers_and_known_resources_are_summed() {
    let template = |limits: serde_json::Value| -> PodTemplateSpec {
        let containers = json!([{"name": "trainer", "resources": {"limits": limits}},
            {"name": "side", "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "2"}}}]);
        serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
    };
    let usual = gpu::Listed::default();
    let number = |limits| per_pod(Some(&template(limits)), &usual);
    assert_eq!(number(json!({"nvidia.com/gpu": 8})), 9);
    assert_eq!(number(json!({"nvidia.com/mig-1g.10gb": 2})), 3);
    assert_eq!(number(json!({"nvidia.com/gpu.shared": 2})), 3);
    assert_eq!(number(json!({"habana.ai/gaudi": 8})), 9);
    assert_eq!(number(json!({"memory": "3Gi", "example.com/gpu": 4})), 1);
    assert_eq!(per_pod(None, &usual), 0);
    let listed = "example.com/gpu".parse().unwrap();
    let renamed = template(json!({"example.com/gpu": 4}));
    assert_eq!(per_pod(Some(&renamed), &listed), 5);
    for resource in gpu::RESOURCES {
        let mut job = raw_job(1);
        job.spec.workers.template = Some(template(json!({resource: 3})));
        assert_eq!(validate(&job).unwrap().procs_per_worker, 3, "{resource}");
    }
}

#[test]
fn gpu_seconds_follow_the_number_of_gpus_over_time() {
    let start = Instant::now();
    let mut account = Account::default();
    assert!(close(account.seconds(start + 5 * SECOND), (0.0, 0.0)));
    let holds = |held, training| Gpus { held, training };
    account.set(holds(4, 0), start);
    account.set(holds(4, 4), start + 10 * SECOND);
    assert!(close(account.seconds(start + 10 * SECOND), (40.0, 0.0)));
    account.set(holds(2, 2), start + 40 * SECOND);
    account.set(holds(0, 0), start + 50 * SECOND);
    let total = (40.0 + 120.0 + 20.0, 120.0 + 20.0);
    assert!(close(account.seconds(start + 50 * SECOND), total));
    assert!(
        close(account.seconds(start + 500 * SECOND), total),
        "no pod holds a GPU any more"
    );
}

#[test]
fn unordered_updates_count_no_gpu_second_twice() {
    let start = Instant::now();
    let mut account = Account::default();
    let gpus = Gpus {
        held: 1,
        training: 1,
    };
    account.set(gpus, start + 2 * SECOND);
    for second in [4, 3, 3, 8, 6, 10] {
        account.set(gpus, start + second * SECOND);
        assert!(account.seconds(start) <= account.seconds(start + second * SECOND));
    }
    assert!(close(account.seconds(start + 10 * SECOND), (8.0, 8.0)));
}
