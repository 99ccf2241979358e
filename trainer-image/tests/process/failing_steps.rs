//! Steps that fail on a rank: divergence, too little memory, and a broken device.

use roundhouse_contract::{ExitCode, Reason};
use serde_json::json;

use crate::harness::{Job, config, images_of};

#[test]
fn diverging_training_suggests_a_change() {
    let mut config = config();
    config["optimizer"]["learningRate"] = json!(1e30);
    let mut job = Job::train(&config, 2, 1);
    assert_eq!(job.exit_codes(), [Some(64), Some(64)], "{}", job.logs());
    let message = job.failure(1, 0).message;
    assert!(message.contains("learningRate"), "{message}");
    // All ranks report the same: the loss of the whole batch, and the ranks where it is not finite.
    assert!(message.contains("training diverges on rank"), "{message}");
    let same = job.failure(0, 0).message;
    assert_eq!(message, same);
}

#[test]
fn out_of_memory_names_the_rank_and_a_remedy() {
    // The hidden layer of a rank's 4,000 images takes 1 GB.
    const LEFT: u64 = 700 << 20;
    let data = images_of(8_000, 4);
    let mut config = config();
    config["model"]["hidden"] = json!([65_536]);
    config["globalBatchSize"] = json!(8_000);
    config["eval"] = json!({"everyEpochs": 0});
    let mut job = Job::start(&config, data.path(), 2, 1);
    job.wait_for("the lobby", |status| status.phase.is_ready());
    for rank in 0..2 {
        job.limit_memory(rank, LEFT);
    }
    job.issue(1);
    let code = Some(ExitCode::Internal.code());
    assert_eq!(job.exit_codes(), [code, code], "{}", job.logs());
    for node in 0..2 {
        let message = job.failure(node, 0).message;
        for words in [
            &format!("rank {node}: out of memory"),
            "trainer.microBatchSize",
            "allocate",
        ] {
            assert!(message.contains(words), "{words}: {message}");
        }
    }
}

#[test]
fn broken_device_is_a_hardware_fault() {
    let mut job = Job::with_broken_device(&config(), 2, 1, 20);
    let code = Some(ExitCode::HardwareFault.code());
    assert_eq!(job.exit_code(1), code, "{}", job.logs());
    let failure = job.failure(1, 0);
    assert_eq!(failure.reason, Reason::HardwareFault);
    assert!(failure.message.contains("ECC"), "{}", failure.message);
    assert_eq!(failure.step, 19);
    job.issue_to(2, &[0]);
    assert_eq!(job.exit_code(0), Some(0), "{}", job.logs());
}
