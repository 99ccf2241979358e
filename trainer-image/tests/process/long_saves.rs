//! Saves that take longer than a generation: the next generation continues them.

use std::time::Duration;

use roundhouse_contract::Phase;

use crate::g07_checkpoints::{checkpoints, endless, everything, wait_for_checkpoint};
use crate::g09_volumes::{every, newest, resume};
use crate::harness::Job;

/// Delay of each access to the volume. A save needs several consecutive accesses.
const PACE_MILLIS: &str = "1600";
/// Duration of the training in each generation.
const GENERATION: Duration = Duration::from_millis(500);
/// Workers that join one after the other and die.
const GUESTS: [u32; 4] = [2, 3, 4, 5];

#[test]
fn save_longer_than_each_generation_is_completed() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path();
    let mut job = Job::patient(&endless(), 6, every(path), 600, "");
    job.wait_for("the lobby", |status| status.phase.is_ready());
    job.passes(1, &[0, 1], 1);
    wait_for_checkpoint(&job);
    job.pace_volume(PACE_MILLIS);
    let mut generation = 1;
    let mut pass = |job: &Job, members: &[u32]| {
        generation += 1;
        job.issue_to(generation, members);
        job.wait_for_nodes(members, "the generation", |status| {
            status.generation == generation && status.phase == Phase::Training
        });
        std::thread::sleep(GENERATION);
        newest(path).unwrap()
    };
    // A save that only lacks its final name gets it.
    let mut found = vec![pass(&job, &[0, 1])];
    for guest in GUESTS {
        found.push(pass(&job, &[0, 1, guest]));
        job.signal(guest as usize, "-KILL");
        assert_eq!(job.exit_code(guest as usize), None);
        found.push(pass(&job, &[0, 1]));
    }
    assert!(
        found[0] < found[2 * GUESTS.len()],
        "{found:?}\n{}",
        job.logs()
    );

    job.pace_volume("0");
    for rank in 0..2 {
        job.signal(rank, "-TERM");
    }
    for rank in 0..2 {
        assert_eq!(job.exit_code(rank), Some(143), "{}", job.logs());
    }
    assert_eq!(everything(path), checkpoints(path), "something is left");
    resume(path, 100);
}
