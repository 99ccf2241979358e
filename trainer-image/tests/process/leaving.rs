//! Processes that are asked to leave while their process group is incomplete: the last one saves
//! the state before it ends.

use std::path::Path;

use roundhouse_contract::{Phase, Reason};
use tempfile::TempDir;

use crate::g03_elastic::{assert_same, undisturbed};
use crate::g07_checkpoints::{beyond, checkpoints, endless, everything, start, step_of};
use crate::harness::{Job, assert_proven, every_steps};

/// Gives a process 4 s until the end of its step, and 4 s to save.
const GRACE_SECONDS: u64 = 12;

/// A job that saves nothing until all ranks leave. Its first workers train.
fn begin(nodes: u32, members: u32) -> (TempDir, Job) {
    let volume = tempfile::tempdir().unwrap();
    let job = Job::leaving(&endless(), nodes, volume.path(), GRACE_SECONDS);
    job.pace_steps(10);
    job.wait_for("the lobby", |status| status.phase.is_ready());
    let members: Vec<u32> = (0..members).collect();
    job.passes(1, &members, 20);
    (volume, job)
}

fn wait_alone(job: &Job, nodes: &[u32]) {
    job.wait_for_nodes(nodes, "a wait for peers", |status| {
        status.phase == Phase::Stranded
    });
}

/// Asserts that these workers end, that their last step is on the volume, and that training
/// continues from it.
fn assert_saved(job: &mut Job, nodes: &[u32], volume: &Path) {
    let mut step = 0;
    for node in nodes {
        assert_eq!(job.exit_code(*node as usize), Some(143), "{}", job.logs());
        let failure = job.failure(*node, 0);
        assert_eq!(failure.reason, Reason::Left);
        step = step.max(failure.step);
    }
    let saved: Vec<u64> = checkpoints(volume).iter().map(|it| step_of(it)).collect();
    assert_eq!(saved.last(), Some(&step), "{}", job.logs());
    let reported = |node: &u32| job.status(*node, 0)?.progress?.checkpoint_step;
    assert!(
        nodes.iter().any(|node| reported(node) == Some(step)),
        "no process reports the checkpoint\n{}",
        job.logs()
    );
    assert_eq!(
        everything(volume),
        checkpoints(volume),
        "an incomplete checkpoint remains"
    );
    let num_written = job.logs().matches("saved without peers").count();
    assert_eq!(
        num_written,
        saved.len(),
        "a state is written more than once\n{}",
        job.logs()
    );
    // The ledger ends in the checkpoint, because no rank remained to write the file.
    assert_proven(volume, step);

    let config = beyond(volume);
    let mut resumed = start(&config, 1, volume, 9);
    resumed.complete();
    assert_same(&resumed, &undisturbed(&config), "after the resume");
    assert_proven(volume, step + 200);
}

#[test]
fn worker_waiting_for_a_lost_peer_saves_before_leaving() {
    let (volume, mut job) = begin(2, 2);
    job.signal(1, "-KILL");
    wait_alone(&job, &[0]);
    job.signal(0, "-TERM");
    assert_saved(&mut job, &[0], volume.path());
}

#[test]
fn worker_whose_peer_dies_saves_before_leaving() {
    let (volume, mut job) = begin(2, 2);
    job.signal(0, "-TERM");
    job.signal(1, "-KILL");
    assert_saved(&mut job, &[0], volume.path());
}

#[test]
fn last_worker_saves_before_leaving() {
    let (volume, mut job) = begin(2, 2);
    job.signal(1, "-TERM");
    assert_eq!(job.exit_code(1), Some(143), "{}", job.logs());
    job.signal(0, "-TERM");
    assert_saved(&mut job, &[0, 1], volume.path());
}

#[test]
fn workers_forming_a_generation_save_before_leaving() {
    let (volume, mut job) = begin(3, 2);
    // The third worker never gets the membership.
    job.publish(2, &[0, 1, 2], &[0, 1]);
    job.wait_for_nodes(&[0, 1], "a generation that forms", |status| {
        status.phase == Phase::Forming
    });
    job.signal(0, "-TERM");
    job.signal(1, "-TERM");
    assert_saved(&mut job, &[0, 1], volume.path());
}

#[test]
fn one_of_the_waiting_workers_saves_the_state() {
    let (volume, mut job) = begin(3, 3);
    job.signal(2, "-KILL");
    wait_alone(&job, &[0, 1]);
    job.signal(0, "-TERM");
    job.signal(1, "-TERM");
    assert_saved(&mut job, &[0, 1], volume.path());
}

#[test]
fn worker_with_a_stopped_peer_saves_within_its_grace() {
    let (volume, mut job) = begin(2, 2);
    job.signal(1, "-STOP");
    job.signal(0, "-TERM");
    assert_saved(&mut job, &[0], volume.path());
}

#[test]
fn dismissed_worker_saves_before_leaving() {
    let (volume, mut job) = begin(2, 2);
    job.signal(1, "-KILL");
    wait_alone(&job, &[0]);
    job.dismiss(2, 0);
    assert_saved(&mut job, &[0], volume.path());
}

#[test]
fn worker_saves_the_received_state_of_a_lost_peer() {
    let volume = tempfile::tempdir().unwrap();
    let never = every_steps(volume.path().to_owned(), u64::MAX);
    // Worker 1 dies after step 20. Worker 0 dies when the third worker has the state after that
    // step.
    let faults = [(0, "0:20:Received"), (1, "1:21:Forward")];
    let mut job = Job::sharing(&endless(), 3, &faults, Some(never));
    job.issue_to(1, &[0, 1]);
    assert_eq!(job.exit_code(1), None, "{}", job.logs());
    job.issue_to(2, &[0, 2]);
    assert_eq!(job.exit_code(0), None, "{}", job.logs());
    wait_alone(&job, &[2]);
    job.signal(2, "-TERM");
    assert_saved(&mut job, &[2], volume.path());
}

#[test]
fn state_that_no_rank_could_save_is_named_by_each_rank() {
    for nodes in [1, 2] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut job = Job::leaving(&endless(), nodes, file.path(), GRACE_SECONDS);
        job.issue_when_ready(1);
        job.wait_for("committed steps", |status| status.step > 20);
        (0..nodes as usize).for_each(|node| job.signal(node, "-TERM"));
        for node in 0..nodes {
            assert_eq!(job.exit_code(node as usize), Some(143), "{}", job.logs());
            let message = job.failure(node, 0).message;
            assert!(message.contains("no checkpoint holds"), "{message}");
            assert!(message.contains("Not a directory"), "{message}");
        }
    }
}

#[test]
fn unsaved_state_is_named_in_the_termination_message() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let on_file = Job::leaving(&endless(), 2, file.path(), GRACE_SECONDS);
    on_file.issue_when_ready(1);
    for (mut job, words) in [
        (on_file, "Not a directory"),
        (Job::train(&endless(), 2, 1), "spec.checkpoint is not set"),
    ] {
        job.wait_for("committed steps", |status| status.step > 20);
        job.signal(1, "-KILL");
        wait_alone(&job, &[0]);
        job.signal(0, "-TERM");
        assert_eq!(job.exit_code(0), Some(143), "{}", job.logs());
        let message = job.failure(0, 0).message;
        assert!(message.contains("no checkpoint holds"), "{message}");
        assert!(message.contains(words), "{message}");
    }
}
