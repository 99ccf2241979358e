//! Processes that waited or were left behind while others saved: a generation that they form
//! continues from the newest checkpoint.

use std::time::Duration;

use roundhouse_contract::Phase;

use crate::g07_checkpoints::{EVERY, checkpoints, endless, step_of, wait_for_checkpoint};
use crate::harness::{Job, audit, every_steps};

/// Kills worker 0 when there is a checkpoint of a generation. Worker 1 then forms the next
/// generation alone, and must not repeat a step that the checkpoint contains.
fn worker_1_continues_from_the_checkpoint_of_worker_0(
    mut job: Job,
    volume: &std::path::Path,
    generation: u64,
) {
    job.signal(0, "-KILL");
    assert_eq!(job.exit_code(0), None);
    let newest = checkpoints(volume)
        .last()
        .map(|path| step_of(path))
        .unwrap();
    job.issue_to(generation, &[1]);
    job.wait_for_nodes(&[1], "a step of worker 1", |status| {
        (status.generation, status.phase) == (generation, Phase::Training) && status.step > 0
    });
    let first = job.first_step_of(generation);
    assert_eq!(first, newest + 1, "{}", job.logs());
    job.signal(1, "-TERM");
    assert_eq!(job.exit_code(1), Some(143), "{}", job.logs());
    let (code, text) = audit(volume);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn waiting_spare_continues_from_the_newest_checkpoint() {
    let volume = tempfile::tempdir().unwrap();
    let job = Job::with_checkpoints(&endless(), 2, every_steps(volume.path().to_owned(), EVERY));
    job.wait_for("all processes in the lobby", |status| {
        status.phase.is_ready()
    });
    job.issue_to(1, &[0]);
    wait_for_checkpoint(&job);
    worker_1_continues_from_the_checkpoint_of_worker_0(job, volume.path(), 2);
}

#[test]
fn spares_wait_for_a_volume_that_does_not_answer() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path();
    let mut job = Job::patient(&endless(), 3, every_steps(path.to_owned(), EVERY), 600, "");
    job.wait_for("all processes in the lobby", |status| {
        status.phase.is_ready()
    });
    job.issue_to(1, &[0]);
    wait_for_checkpoint(&job);
    job.signal(0, "-KILL");
    assert_eq!(job.exit_code(0), None);
    let saved = checkpoints(path).last().map(|path| step_of(path)).unwrap();
    job.pace_volume("hold");
    job.issue_to(2, &[1, 2]);
    // Longer than ranks with a state wait for the volume's listing before they continue without it.
    std::thread::sleep(Duration::from_secs(4));
    for node in [1, 2] {
        let status = job.status(node, 0).unwrap();
        assert_eq!(status.step, 0, "{status:?}");
        assert_ne!(status.phase, Phase::Training);
    }
    job.pace_volume("0");
    job.wait_for_nodes(&[1, 2], "a step", |status| status.step > saved);
    assert_eq!(job.first_step_of(2), saved + 1, "{}", job.logs());
}

#[test]
fn stranded_member_continues_from_the_newest_checkpoint() {
    let volume = tempfile::tempdir().unwrap();
    let job = Job::with_checkpoints(&endless(), 2, every_steps(volume.path().to_owned(), EVERY));
    job.issue_when_ready(1);
    job.wait_for("steps of both", |status| status.step > 5);
    // Worker 1 does not get this generation.
    job.issue_to(2, &[0]);
    job.wait_for_nodes(&[1], "worker 1 waits", |status| {
        matches!(status.phase, Phase::Lobby | Phase::Stranded)
    });
    let left = job.status(1, 0).unwrap().step;
    job.wait_for_nodes(&[0], "a newer checkpoint", |status| {
        let progress = status.progress.as_ref();
        progress.is_some_and(|progress| progress.checkpoint_step > Some(left))
    });
    worker_1_continues_from_the_checkpoint_of_worker_0(job, volume.path(), 3);
}
