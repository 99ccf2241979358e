//! Gradients that are sent as products of narrow matrices: `ddp.compression: PowerSGD`.

use serde_json::{Value, json};

use crate::g05_parity::difference;
use crate::harness::{Job, assert_proven, config, on_device};
use crate::layout::greatest_difference;

const STEPS: u64 = 200;
const START: u64 = 10;

fn compressed(start_step: u64) -> Value {
    let mut config = config();
    config["steps"] = json!(STEPS);
    config["ddp"] = json!({
        "compression": "PowerSGD", "powerSGD": {"rank": 2, "startStep": start_step},
    });
    config
}

#[test]
fn power_sgd_trains_as_well_also_after_a_kill() {
    let config = compressed(START);
    // A process alone does not compress.
    let mut alone = Job::train(&config, 1, 1);
    alone.complete();
    let [first, second] = [(), ()].map(|()| {
        let mut job = Job::train(&config, 3, 1);
        let bytes = job.complete();
        let found = job.accuracy();
        println!(
            "accuracy {found} of 3 processes, {} alone",
            alone.accuracy()
        );
        assert!(found >= alone.accuracy() - 0.03, "{found}");
        let found = difference(&job.weights(), &alone.weights());
        assert!(found > 1e-3, "nothing was left out: {found:e}");
        bytes
    });
    assert!(first == second, "three processes come to other bits");
    for (victim, point) in [(0, "Backward"), (2, "Commit")] {
        let mut job = Job::with_kill(&config, 3, victim, &format!("{victim}:40:{point}"));
        assert_eq!(job.exit_code(victim as usize), None, "{}", job.logs());
        let survivors = job.others(victim);
        job.issue_to(2, &survivors);
        job.wait_for_nodes(&survivors, "a step of generation 2", |status| {
            status.generation == 2 && status.step > 41
        });
        job.respawn(victim);
        job.issue_to(3, &[survivors.as_slice(), &[victim]].concat());
        job.complete();
        assert_proven(job.volume(), STEPS);
        let found = job.accuracy();
        println!("accuracy {found} with a kill");
        assert!(found >= alone.accuracy() - 0.03, "{found}\n{}", job.logs());
    }
}

#[test]
fn gradients_are_uncompressed_before_the_start_step() {
    let mut config = compressed(60);
    config["steps"] = json!(60);
    let found = greatest_difference(&config);
    assert!(found <= 1e-6, "{found:e}");
    config["ddp"]["staticGraph"] = json!(true);
    let found = greatest_difference(&config);
    assert!(found <= 1e-6, "{found:e}");
}

#[test]
fn power_sgd_survives_skips_and_loss_scale_changes() {
    let mut config = compressed(0);
    config["onNonFinite"] = json!("Skip");
    config["ddp"]["staticGraph"] = json!(true);
    let mut scaled = config.clone();
    scaled["precision"] = json!("fp16");
    scaled["lossScaling"] = json!({"initial": 1024.0, "growthInterval": 20});
    for config in [config, scaled] {
        let train = |spoilt| {
            // Use two ranks: sums of three would depend on the place of a number in its bucket,
            // which also contains the votes of the host.
            let mut job = Job::spoilt(&config, 2, 1, spoilt, None);
            let bytes = job.complete();
            (job, bytes)
        };
        let (usual, _) = train("");
        let (host, bytes) = train("1,30,31");
        let (device, same) = on_device(|| train("1,30,31"));
        for job in [&host, &device] {
            assert_eq!(job.progress().skipped_steps, 3);
            let (found, wanted) = (job.accuracy(), usual.accuracy());
            println!("accuracy {found} with skipped steps, {wanted} without");
            assert!(found >= wanted - 0.03, "{found}");
        }
        assert!(bytes == same, "the device comes to other bits");
    }
}
