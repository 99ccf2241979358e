//! A bit of a weight flips on one rank, as in a faulty device. The next save detects it, and no
//! checkpoint mixes parts of two states.

use roundhouse_contract::{ExitCode, Phase, Reason};

use crate::g03_elastic::{assert_same, undisturbed};
use crate::g07_checkpoints::{EVERY, checkpoints, endless, everything, start, step_of, training};
use crate::harness::{Job, assert_proven, every_steps};

/// A step in the middle between two saves.
const FLIPPED_AT: u64 = EVERY + EVERY / 2;

fn flipped(config: &serde_json::Value, world: u32, rank: u32, volume: &std::path::Path) -> Job {
    let checkpoint = every_steps(volume.to_owned(), EVERY);
    let job = Job::with_flipped_bit(config, world, checkpoint, rank, FLIPPED_AT);
    // Slow steps, because a save is skipped while the previous save is running.
    job.pace_steps(5);
    job.issue_when_ready(1);
    job
}

#[test]
fn rank_with_a_flipped_bit_is_named_and_replaced() {
    let volume = tempfile::tempdir().unwrap();
    let config = training();
    let mut job = flipped(&config, 3, 1, volume.path());
    let code = Some(ExitCode::HardwareFault.code());
    assert_eq!(job.exit_code(1), code, "{}", job.logs());
    let failure = job.failure(1, 0);
    assert_eq!(failure.reason, Reason::HardwareFault);
    assert!(failure.step >= FLIPPED_AT, "{}", failure.step);
    let first = "model.fc1.weight of rank 1 is not that of rank 0 and of most ranks";
    assert!(failure.message.contains(first), "{}", failure.message);
    job.wait_for_nodes(&[0, 2], "its loss", |status| {
        status.phase == Phase::Stranded && status.step == failure.step
    });
    let saved = checkpoints(volume.path());
    let too_new = |path: &std::path::PathBuf| step_of(path) >= FLIPPED_AT;
    assert!(!saved.is_empty() && !saved.iter().any(too_new), "{saved:?}");
    job.pace_steps(0);
    job.issue_to(2, &[0, 2]);
    for rank in [0, 2] {
        assert_eq!(job.exit_code(rank), Some(0), "{}", job.logs());
    }
    assert_eq!(job.first_step_of(2), failure.step + 1);
    assert_same(&job, &undisturbed(&config), "without the flipped bit");
    assert_proven(volume.path(), config["steps"].as_u64().unwrap());
}

#[test]
fn two_differing_ranks_resume_from_the_last_checkpoint() {
    let volume = tempfile::tempdir().unwrap();
    let mut job = flipped(&endless(), 2, 1, volume.path());
    let code = Some(ExitCode::HardwareFault.code());
    assert_eq!(job.exit_codes(), [code, code], "{}", job.logs());
    for node in 0..2 {
        let words = job.failure(node, 0).message;
        let differ = format!(
            "replicas differ after step {}: model.fc1.weight of ranks 0 and 1 differ; there is no majority",
            2 * EVERY
        );
        assert!(words.contains(&differ), "{words}");
    }
    let saved = checkpoints(volume.path());
    assert_eq!(everything(volume.path()), saved, "parts of both are left");
    assert_eq!(saved.last().map(|path| step_of(path)), Some(EVERY));
    let config = training();
    let mut job = start(&config, 2, volume.path(), 2);
    job.complete();
    assert_same(&job, &undisturbed(&config), "from the checkpoint before");
    assert_proven(volume.path(), config["steps"].as_u64().unwrap());
}
