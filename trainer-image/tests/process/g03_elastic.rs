//! Changes of the set of workers: no rank restarts because another rank failed, and the final
//! weights equal those of an undisturbed training.

use std::time::{Duration, Instant};

use roundhouse_contract::Phase;
use serde_json::{Value, json};
use tch::Tensor;

use crate::g05_parity::difference;
use crate::g07_checkpoints::endless;
use crate::harness::{Job, assert_proven, config, digits, every_steps, without_evaluations};

/// Tolerance per hundred steps, relative to the largest weight of each tensor: sums of other
/// lengths round differently.
const TOLERANCE: f64 = 1e-6;
pub(crate) const STEPS: u64 = 60;
const FAULT_AT: u64 = 20;

pub(crate) fn short() -> Value {
    let mut config = config();
    config["steps"] = json!(STEPS);
    config
}

pub(crate) fn undisturbed(config: &Value) -> Vec<(String, Tensor)> {
    let mut job = Job::train(config, 1, 1);
    job.complete();
    job.weights()
}

pub(crate) fn assert_same(job: &Job, expected: &[(String, Tensor)], what: &str) {
    let steps = job.step().max(100);
    let tolerance = TOLERANCE * steps as f64 / 100.0;
    let found = difference(&job.weights(), expected);
    assert!(
        found <= tolerance,
        "{what}: the weights differ by {found:e}\n{}",
        job.logs()
    );
}

/// Kills one rank of `world` at a point, continues without it, and later with a replacement.
pub(crate) fn survive(world: u32, victim: u32, point: &str, expected: &[(String, Tensor)]) {
    let what = format!("rank {victim} of {world} at {point}");
    let mut job = Job::with_kill(
        &short(),
        world,
        victim,
        &format!("{victim}:{FAULT_AT}:{point}"),
    );
    assert_eq!(
        job.exit_code(victim as usize),
        None,
        "{what}\n{}",
        job.logs()
    );
    let survivors = job.others(victim);
    let begun = Instant::now();
    job.issue_to(2, &survivors);
    job.wait_for_nodes(&survivors, "a step of generation 2", |status| {
        status.generation == 2 && status.step > FAULT_AT || status.phase == Phase::Done
    });
    println!("{what}: next step after {:.0?}", begun.elapsed());
    for survivor in &survivors {
        assert_eq!(
            job.exit_code(*survivor as usize),
            Some(0),
            "{what}\n{}",
            job.logs()
        );
    }
    assert_same(&job, expected, &what);
    assert_proven(job.volume(), STEPS);
}

#[test]
fn killed_rank_costs_only_the_current_step() {
    let expected = undisturbed(&short());
    // A checkpoint is also saved at the step of the fault.
    for (point, worlds) in [
        ("Forward", [(2, 0), (3, 1), (4, 2)]),
        ("Backward", [(2, 1), (3, 2), (4, 0)]),
        ("Update", [(2, 0), (3, 1), (4, 2)]),
        ("Commit", [(2, 1), (3, 0), (4, 0)]),
        ("Checkpoint", [(2, 0), (3, 2), (4, 2)]),
    ] {
        for (world, victim) in worlds {
            survive(world, victim, point, &expected);
        }
    }
}

#[test]
#[ignore = "starts 35 jobs: make test-long runs it"]
fn killed_rank_costs_only_the_current_step_in_each_combination() {
    let expected = undisturbed(&short());
    for point in ["Forward", "Backward", "Update", "Commit", "Checkpoint"] {
        for (world, victim) in [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 0), (4, 2)] {
            survive(world, victim, point, &expected);
        }
    }
}

#[test]
fn rank_killed_while_forming_is_replaced_in_the_next() {
    let mut config = short();
    config["steps"] = json!(400);
    let expected = undisturbed(&config);
    for victim in [0, 2] {
        // Generation 1 shares the state at step 0, where this rank dies.
        let mut job = Job::with_kill(&config, 3, victim, &format!("{victim}:0:Share"));
        job.pace_steps(50);
        assert_eq!(job.exit_code(victim as usize), None, "{}", job.logs());
        let survivors = job.others(victim);
        job.issue_to(2, &survivors);
        job.wait_for_nodes(&survivors, "generation 2", |status| {
            status.generation == 2 && status.step > 5
        });
        job.respawn(victim);
        let members = [survivors.as_slice(), &[victim]].concat();
        job.issue_to(3, &members);
        job.wait_for("generation 3", |status| {
            status.generation == 3 && status.phase == Phase::Training
        });
        job.pace_steps(0);
        job.complete();
        assert_same(&job, &expected, &format!("rank {victim} while forming"));
        assert_proven(job.volume(), 400);
    }
}

#[test]
fn rank_killed_before_connecting_costs_no_timeout() {
    let expected = undisturbed(&short());
    let mut job = Job::with_kill(&short(), 3, 1, "1:1:Connect");
    assert_eq!(job.exit_code(1), None, "{}", job.logs());
    let begun = Instant::now();
    job.issue_to(2, &[0, 2]);
    job.wait_for_nodes(&[0, 2], "generation 2", |status| status.generation == 2);
    let elapsed = begun.elapsed();
    println!("the others continued without it after {elapsed:.1?}");
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
    for node in [0, 2] {
        assert_eq!(job.exit_code(node), Some(0), "{}", job.logs());
    }
    assert_same(&job, &expected, "a rank that never connected");
}

#[test]
pub(crate) fn job_grows_and_shrinks_while_it_trains() {
    let mut config = config();
    config["steps"] = json!(300);
    let expected = undisturbed(&config);
    let volume = tempfile::tempdir().unwrap();
    let checkpoint = every_steps(volume.path().to_owned(), 100);
    let mut job = Job::with_checkpoints(&config, 4, checkpoint);
    job.pace_steps(40);
    job.wait_for("the lobby", |status| status.phase.is_ready());
    job.passes(1, &[0], 20);
    job.passes(2, &[0, 1, 2, 3], 20);
    job.dismiss(3, 0);
    job.dismiss(3, 1);
    job.passes(3, &[2, 3], 20);
    assert_eq!(job.exit_code(0), Some(143));
    assert_eq!(job.exit_code(1), Some(143));
    job.respawn(1);
    job.wait_for_nodes(&[1], "the lobby", |status| status.phase.is_ready());
    job.passes(4, &[2, 3, 1], 1);
    job.pace_steps(0);
    for node in [1, 2, 3] {
        assert_eq!(job.exit_code(node), Some(0), "{}", job.logs());
    }
    assert_same(&job, &expected, "1, 4, 2, 3 workers");
    assert_proven(volume.path(), 300);
}

#[test]
fn training_continues_until_a_newcomer_reaches_the_store() {
    let mut config = config();
    config["steps"] = json!(10_000_000);
    let job = Job::start(&config, &digits(), 3, 1);
    job.wait_for("the lobby", |status| status.phase.is_ready());
    job.issue_to(1, &[0, 1]);
    job.wait_for_nodes(&[0, 1], "committed steps", |status| status.step > 5);
    job.publish(2, &[0, 1, 2], &[0, 1]);
    // Far more steps than before they read the file, and far fewer than they train until the join
    // wait ends.
    let at = job.status(0, 0).unwrap().step;
    job.wait_for_nodes(&[0, 1], "more steps", |status| status.step > at + 25);
    assert_eq!(job.status(0, 0).unwrap().generation, 1);
    job.publish(2, &[0, 1, 2], &[2]);
    job.wait_for("a step of all three", |status| {
        status.generation == 2 && status.phase == Phase::Training
    });
    // Ranks do not wait indefinitely for a worker that never joins: a newer generation ends their
    // wait at the store.
    job.publish(3, &[0, 1, 2, 3], &[0, 1, 2]);
    job.wait_for("the end of the join wait", |status| {
        status.phase == Phase::Forming
    });
    job.issue_to(4, &[0, 1, 2]);
    job.wait_for("a step without it", |status| {
        status.generation == 4 && status.phase == Phase::Training
    });
}

#[test]
fn survivors_keep_their_state_while_they_wait() {
    let mut config = config();
    config["steps"] = json!(10_000_000);
    let mut job = Job::train(&config, 3, 1);
    job.wait_for("committed steps", |status| status.step > 5);
    job.signal(1, "-KILL");
    let killed_at = Instant::now();
    assert_eq!(job.exit_code(1), None);
    job.wait_for_nodes(&[0, 2], "the report", |status| {
        status.phase == Phase::Stranded
    });
    let elapsed = killed_at.elapsed();
    println!("both survivors know after {elapsed:.0?}");
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
    let step = job.status(0, 0).unwrap().step;
    job.issue_to(2, &[0, 2]);
    job.wait_for_nodes(&[0, 2], "more steps", |status| {
        status.generation == 2 && status.step > step
    });
}

#[test]
pub(crate) fn stopped_rank_is_left_behind_and_never_commits_again() {
    let mut config = without_evaluations(short());
    config["steps"] = json!(400);
    let expected = undisturbed(&config);
    let mut job = Job::train(&config, 3, 1);
    job.pace_steps(50);
    job.wait_for("committed steps", |status| status.step > 5);
    job.signal(1, "-STOP");
    let stopped_at = Instant::now();
    job.issue_to(2, &[0, 2]);
    job.wait_for_nodes(&[0, 2], "a step without it", |status| {
        status.generation == 2 && status.phase == Phase::Training
    });
    // Far below the timeout of a collective: the others do not wait for a rank that the operator
    // has removed.
    let elapsed = stopped_at.elapsed();
    println!("the others continue after {elapsed:.1?}");
    assert!(elapsed < Duration::from_secs(15), "{elapsed:?}");
    let reached = job.status(0, 0).unwrap().step;
    job.signal(1, "-CONT");
    job.wait_for_nodes(&[1], "the report", |status| status.phase == Phase::Stranded);
    let last = job.status(1, 0).unwrap();
    assert!(last.generation == 1 && last.step <= reached, "{last:?}");
    job.pace_steps(0);
    job.dismiss(2, 1);
    assert_eq!(job.exit_code(1), Some(143));
    for node in [0, 2] {
        assert_eq!(job.exit_code(node), Some(0), "{}", job.logs());
    }
    assert_same(&job, &expected, "a stopped rank");
}

#[test]
fn rank_without_the_new_membership_delays_others_briefly() {
    let mut config = config();
    config["steps"] = json!(10_000_000);
    let job = Job::start(&config, &crate::harness::digits(), 3, 1);
    job.wait_for("the lobby", |status| status.phase.is_ready());
    job.issue_to(1, &[0, 1]);
    job.wait_for_nodes(&[0, 1], "committed steps", |status| status.step > 5);
    let issued_at = Instant::now();
    job.issue_to(2, &[0, 2]);
    job.wait_for_nodes(&[0, 2], "steps without it", |status| {
        status.generation == 2 && status.phase == Phase::Training
    });
    println!("left behind after {:.1?}", issued_at.elapsed());
    job.wait_for_nodes(&[1], "the report", |status| {
        (status.generation, status.phase) == (1, Phase::Stranded)
    });
}

fn wait_for_training(job: &Job) {
    job.wait_for("committed steps", |status| {
        status.phase == Phase::Training && status.step > 5
    });
}

#[test]
pub(crate) fn newer_generation_starts_at_a_step_boundary() {
    let mut config = config();
    config["steps"] = json!(400);
    let mut job = Job::train(&config, 2, 1);
    job.pace_steps(20);
    wait_for_training(&job);
    job.issue(2);
    job.wait_for("generation 2", |status| status.generation == 2);
    job.pace_steps(0);
    let switched = job.complete();
    assert!(
        job.status(0, 0)
            .is_some_and(|status| status.generation == 2 && status.step == 400)
    );
    let undisturbed = Job::train(&config, 2, 1).complete();
    assert!(
        switched == undisturbed,
        "the weights differ from those of one generation"
    );
}

#[test]
fn generation_from_before_the_start_is_not_joined() {
    let job = Job::restart(&endless(), 1, 4);
    job.wait_for("lobby", |status| status.phase == Phase::Lobby);
    job.issue(3);
    job.issue(5);
    job.wait_for("generation 5", |status| status.generation == 5);
}
