//! Saves that take longer than a generation: the next generation continues them.

use std::time::Duration;

use roundhouse_contract::Phase;

use crate::g07_checkpoints::{checkpoints, endless, everything, wait_for_checkpoint};
use crate::g09_volumes::{every, newest, resume};
use crate::harness::Job;

/// Delay of each access to the volume. A save needs about twelve consecutive accesses, which take
/// several times as long as a generation.
const PACE_MILLIS: &str = "800";
/// Duration of the training in each generation.
const GENERATION: Duration = Duration::from_millis(500);
/// Workers that join one after the other and die.
const GUESTS: [u32; 4] = [2, 3, 4, 5];
/// Most generations. A save that each of them begins again would never end.
const MAX_GENERATIONS: u64 = 40;

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
    let first = pass(&job, &[0, 1]);
    let mut last = first;
    for guest in GUESTS {
        pass(&job, &[0, 1, guest]);
        job.signal(guest as usize, "-KILL");
        assert_eq!(job.exit_code(guest as usize), None);
        last = pass(&job, &[0, 1]);
    }
    // The volume also slows down the start of a generation, so their number varies.
    let mut left = MAX_GENERATIONS - 2 * GUESTS.len() as u64;
    while last == first {
        assert!(left > 0, "nothing newer than {first}\n{}", job.logs());
        left -= 1;
        last = pass(&job, &[0, 1]);
    }

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
