//! Prints how long one plan of a large job takes, while nothing happens and after a container of
//! one pod has died: `cargo run --release -p roundhouse-planner --example plan_time --features
//! testing`.

use std::time::{Duration, Instant};

use roundhouse_planner::PodPhase;
use roundhouse_planner::testing::{World, raw_job, world_of};
use serde_json::json;

/// Number of measured plans.
const NUM_PLANS: usize = 200;

fn main() {
    println!("| replicas × pods | at rest, median | p99 | after a death, median | p99 |");
    println!("|---|---|---|---|---|");
    for (replicas, pods) in [(2_000, 1), (2_000, 8), (250, 64)] {
        let mut world = training(replicas, pods);
        let [rest_median, rest_p99] = times(&world);
        world.ends(1, 137, 0);
        let [death_median, death_p99] = times(&world);
        let cells = [rest_median, rest_p99, death_median, death_p99];
        let cells = cells.map(|time| format!("{:.1} ms", time.as_secs_f64() * 1e3));
        println!("| {replicas} × {pods} | {} |", cells.join(" | "));
    }
}

/// A job of which all pods train.
fn training(replicas: u32, pods: u32) -> World {
    let mut raw = raw_job(replicas);
    if pods > 1 {
        raw.spec.workers.pods_per_replica = Some(pods);
        if let Some(trainer) = &mut raw.spec.trainer {
            trainer.parallel =
                serde_json::from_value(json!({"shard": "Zero1"})).unwrap_or_default();
        }
    }
    let mut world = world_of(&raw);
    // A plan has at most 256 writes.
    for _ in 0..replicas * pods {
        for pod in &mut world.observed.pods {
            let is_placed = pods == 1 || pod.replica.is_some();
            pod.phase = PodPhase::Running;
            pod.ip.get_or_insert_with(|| pod.uid.clone());
            pod.ready = is_placed;
        }
        let plan = world.plan();
        if plan.actions.is_empty() && plan.status == world.observed.status {
            return world;
        }
        world.carry_out(&plan, usize::MAX);
    }
    world
}

fn times(world: &World) -> [Duration; 2] {
    let mut times: Vec<Duration> = (0..NUM_PLANS)
        .map(|_| {
            let begun = Instant::now();
            std::hint::black_box(world.plan());
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    let at = |share: usize| {
        times
            .get(times.len() * share / 100)
            .copied()
            .unwrap_or_default()
    };
    [at(50), at(99)]
}
