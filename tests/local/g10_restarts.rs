//! Restarts of killed and hung workers in the local executor.

use roundhouse_contract::Phase;
use roundhouse_tests::local::{LocalRun, job};
use roundhouse_tests::processes::send;
use roundhouse_tests::weights::difference;
use rustix::process::Signal;

/// Milliseconds added to each step, so that an event finds the job training.
const PAUSE_MILLIS: u64 = 3;

#[test]
fn killed_worker_restarts_and_final_weights_are_the_same() {
    let mut alone = LocalRun::start(&job(1, 1_000), &[]).unwrap();
    assert!(alone.end().unwrap().success(), "{}", alone.output());
    let mut run = LocalRun::start(&job(2, 1_000), &[]).unwrap();
    run.slow_down(PAUSE_MILLIS).unwrap();
    run.wait_for("steps", |run| run.step() > 20).unwrap();
    let victim = run.agents()[0].ranks[0];
    assert!(send(victim, Signal::KILL));
    run.wait_for("both workers in one generation", |run| {
        run.generation() >= 3 && run.agents().len() == 2
    })
    .unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    let apart = difference(&alone.weights().unwrap(), &run.weights().unwrap()).unwrap();
    assert!(apart < 1e-5, "{apart:e}");
    assert!(run.output().contains("Succeeded"), "{}", run.output());
    let (record, samples) = run.record().unwrap();
    let state = &record["job"]["status"]["state"];
    assert_eq!(state, "Completed", "{record}");
    assert_eq!(record["pods"].as_array().unwrap().len(), 2);
    let mut events = record["events"].as_array().unwrap().iter();
    assert!(events.any(|event| event["reason"] == "WorkerFailed"));
    assert_eq!(samples.last().unwrap()["step"], 1_000);
}

#[test]
fn killed_process_restarts_beside_its_sibling() {
    let mut wanted = job(1, 2_000);
    wanted["spec"]["workers"]["procsPerWorker"] = 2.into();
    let mut run = LocalRun::start(&wanted, &[]).unwrap();
    run.slow_down(20).unwrap();
    run.wait_for("steps", |run| run.step() > 20).unwrap();
    let before = run.agents().remove(0);
    let [sibling, victim] = before.ranks[..] else {
        panic!("not two processes: {before:?}");
    };
    assert!(send(victim, Signal::KILL));
    run.wait_for("both processes in a later generation", |run| {
        let trains = |local_rank| {
            let statuses = run.statuses_of(local_rank).into_iter();
            statuses
                .filter(|it| it.generation > 1 && it.phase == Phase::Training)
                .count()
                == 1
        };
        trains(0) && trains(1)
    })
    .unwrap();
    let after = run.agents();
    assert_eq!(after.len(), 1, "{}", run.output());
    let after = &after[0];
    assert_eq!(after.pid, before.pid, "{}", run.output());
    assert_eq!(after.ranks.len(), 2);
    assert!(after.ranks.contains(&sibling), "{}", run.output());
    assert!(!after.ranks.contains(&victim));
    run.slow_down(0).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    run.audit().unwrap();
}

#[test]
fn hung_worker_is_one_incident() {
    let mut job = job(3, 1_000);
    job["spec"]["stallTimeoutSeconds"] = 6.into();
    // A second incident would fail the job.
    job["spec"]["failurePolicy"] = serde_json::json!({"maxIncidents": 1});
    let mut run = LocalRun::start(&job, &[]).unwrap();
    run.slow_down(20).unwrap();
    // The operator distrusts reports of lost peers soon after it has issued a generation.
    run.wait_for("steps", |run| run.step() > 200).unwrap();
    assert!(send(run.agents()[1].ranks[0], Signal::STOP));
    run.wait_for("the end of the hung process", |run| {
        run.output().contains("Stalled")
    })
    .unwrap();
    assert!(run.output().contains("PeersLost"), "{}", run.output());
    run.slow_down(0).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
}
