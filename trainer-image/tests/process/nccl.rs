//! Elasticity over a fake NCCL. Its collectives hang when a peer dies and return garbage when the
//! group is aborted. It ends a process that aborts a group twice.

use std::time::{Duration, Instant};

use roundhouse_contract::Phase;
use serde_json::{Value, json};
use tch::Tensor;

use crate::g03_elastic::{STEPS, assert_same, short, undisturbed};
use crate::harness::{Job, assert_proven, config};

/// Longer than a test, so a wait that ends earlier did not end by this timeout.
const NEVER: u32 = 86_400;

fn of_steps(steps: u64) -> Value {
    let mut config = config();
    config["steps"] = json!(steps);
    config
}

fn assert_done(job: &mut Job, nodes: &[u32], what: &str) {
    for node in nodes {
        let code = job.exit_code(*node as usize);
        assert_eq!(code, Some(0), "{what}\n{}", job.logs());
    }
}

/// Kills one of three ranks at a point. The survivors hang until the next generation is published.
/// Returns how often each of them has aborted the first group.
pub(crate) fn survive(
    config: &Value,
    victim: u32,
    fault: &str,
    expected: &[(String, Tensor)],
) -> Vec<usize> {
    let what = format!("rank {fault}");
    let mut job = Job::over_nccl(config, 3, &[(victim, fault)], NEVER);
    job.issue_when_ready(1);
    assert_eq!(job.exit_code(victim as usize), None, "{}", job.logs());
    let survivors = job.others(victim);
    let begun = Instant::now();
    job.issue_to(2, &survivors);
    assert_done(&mut job, &survivors, &what);
    println!(
        "{what}: done {:.1?} after the next generation",
        begun.elapsed()
    );
    assert_same(&job, expected, &what);
    assert_proven(job.volume(), config["steps"].as_u64().unwrap());
    let aborts = |node: &u32| {
        assert_eq!(job.num_aborts(*node, 2), 0, "{what}\n{}", job.logs());
        job.num_aborts(*node, 1)
    };
    survivors.iter().map(aborts).collect()
}

#[test]
fn killed_rank_over_nccl_costs_only_the_current_step() {
    let config = short();
    let expected = undisturbed(&config);
    for point in ["Forward", "Backward", "Agree", "Update", "Commit"] {
        for victim in 0..3 {
            let fault = format!("{victim}:20:{point}");
            let aborts = survive(&config, victim, &fault, &expected);
            assert_eq!(aborts, [1, 1], "{fault}");
        }
    }
}

#[test]
fn rank_killed_while_forming_over_nccl_is_replaced() {
    let config = short();
    let expected = undisturbed(&config);
    // Before the ranks connect, before they agree on the source of the state, and before they send
    // it.
    for (fault, most) in [
        ("1:1:Connect", 0),
        ("0:0:Share", 1),
        ("2:0:Share", 1),
        ("2:0:State", 1),
    ] {
        let victim = fault[..1].parse().unwrap();
        let aborts = survive(&config, victim, fault, &expected);
        // A rank that is not connected yet has nothing to abort.
        assert!(
            aborts.iter().all(|aborts| *aborts <= most),
            "{fault}: {aborts:?}"
        );
    }
}

/// One survivor does not get the next generation. The others abort, which ends its collective with
/// garbage. Only this garbage shows it that the group has failed.
fn garbage_of_a_neighbour(nodes: u32, victim: u32, fault: &str, unaware: u32) {
    // On a busy machine the victim may die before all others are connected to it. There is then no
    // collective yet, so try again.
    assert!((0..5).any(|_| detects_garbage(nodes, victim, fault, unaware)));
}

/// Returns whether all ranks were connected when the victim died.
fn detects_garbage(nodes: u32, victim: u32, fault: &str, unaware: u32) -> bool {
    let expected = undisturbed(&short());
    let mut job = Job::over_nccl(&short(), nodes, &[(victim, fault)], NEVER);
    job.issue_when_ready(1);
    assert_eq!(job.exit_code(victim as usize), None, "{}", job.logs());
    let survivors = job.others(victim);
    let others: Vec<u32> = survivors
        .iter()
        .copied()
        .filter(|node| *node != unaware)
        .collect();
    job.publish(2, &survivors, &others);
    job.wait_for_nodes(&[unaware], "the report of the abort", |status| {
        status.phase == Phase::Stranded
    });
    job.publish(2, &survivors, &[unaware]);
    assert_done(&mut job, &survivors, fault);
    assert_same(&job, &expected, fault);
    assert_proven(job.volume(), STEPS);
    if job.logs().contains("connectFullMesh failed") {
        return false;
    }
    assert_eq!(job.num_aborts(unaware, 1), 1, "{}", job.logs());
    true
}

#[test]
pub(crate) fn garbage_of_an_aborting_neighbour_is_not_committed() {
    garbage_of_a_neighbour(3, 1, "1:20:Agree", 0);
    garbage_of_a_neighbour(3, 1, "1:0:Share", 2);
}

#[test]
fn garbage_of_an_aborting_neighbour_is_no_state() {
    // Rank 3 receives the state of rank 0 through rank 2.
    garbage_of_a_neighbour(4, 2, "2:0:State", 3);
}

#[test]
pub(crate) fn job_over_nccl_grows_and_shrinks_without_an_abort() {
    let config = of_steps(400);
    let expected = undisturbed(&config);
    let mut job = Job::over_nccl(&config, 4, &[], NEVER);
    job.pace_steps(20);
    job.wait_for("the lobby", |status| status.phase.is_ready());
    job.passes(1, &[0, 1], 20);
    job.passes(2, &[0, 1, 2, 3], 20);
    job.dismiss(3, 3);
    job.dismiss(3, 0);
    job.passes(3, &[1, 2], 20);
    job.pace_steps(0);
    assert_eq!([job.exit_code(0), job.exit_code(3)], [Some(143); 2]);
    assert_done(&mut job, &[1, 2], "2, 4, 2 workers");
    let aborts = |generation| (0..4).map(move |node| (node, generation));
    let aborts = (1..=3).flat_map(aborts);
    let num_aborts: usize = aborts
        .map(|(node, generation)| job.num_aborts(node, generation))
        .sum();
    assert_eq!(num_aborts, 0, "{}", job.logs());
    assert_same(&job, &expected, "2, 4, 2 workers");
    assert_proven(job.volume(), 400);
}

#[test]
pub(crate) fn silent_peer_over_nccl_is_left_behind() {
    let config = of_steps(600);
    let expected = undisturbed(&config);
    let mut job = Job::over_nccl(&config, 3, &[], 5);
    job.pace_steps(20);
    job.issue_when_ready(1);
    job.wait_for("committed steps", |status| status.step > 5);
    job.signal(1, "-STOP");
    let stopped_at = Instant::now();
    job.issue_to(2, &[0, 2]);
    job.wait_for_nodes(&[0, 2], "a step without it", |status| {
        status.generation == 2 && status.phase == Phase::Training
    });
    println!("the others continue after {:.1?}", stopped_at.elapsed());
    // The stopped rank may still receive the collective for which the others waited.
    let last = job.status(0, 0).unwrap().step + 1;
    job.signal(1, "-CONT");
    job.wait_for_nodes(&[1], "the report", |status| status.phase == Phase::Stranded);
    assert!(job.status(1, 0).unwrap().step <= last, "{}", job.logs());
    job.pace_steps(0);
    job.dismiss(2, 1);
    assert_eq!(job.exit_code(1), Some(143), "{}", job.logs());
    assert_done(&mut job, &[0, 2], "a stopped rank");
    assert_same(&job, &expected, "a stopped rank");
}

#[test]
fn silent_peer_over_nccl_strands_the_others() {
    let job = Job::over_nccl(&of_steps(10_000_000), 3, &[], 5);
    job.issue_when_ready(1);
    job.wait_for("committed steps", |status| status.step > 5);
    job.signal(1, "-STOP");
    let stopped_at = Instant::now();
    // No new generation is published, so only the library's timeout of 5 s ends the wait.
    job.wait_for_nodes(&[0, 2], "a timeout", |status| {
        status.phase == Phase::Stranded
    });
    assert!(stopped_at.elapsed() >= Duration::from_secs(4));
    let step = job.status(0, 0).unwrap().step;
    job.issue_to(2, &[0, 2]);
    job.wait_for_nodes(&[0, 2], "more steps", |status| {
        status.generation == 2 && status.step > step
    });
    assert_eq!(job.num_aborts(0, 1), 1, "{}", job.logs());
    job.signal(1, "-KILL");
}
