//! Changes of the number of workers in the local executor.

use roundhouse_contract::Phase;
use roundhouse_tests::local::{LocalRun, job};
use rustix::process::Signal;

#[test]
fn saved_job_file_rescales_the_job() {
    let mut run = LocalRun::start(&job(1, 1_000_000), &[]).unwrap();
    run.wait_for("steps", |run| run.step() > 5).unwrap();
    run.scale(3).unwrap();
    run.wait_for("three workers in one generation", |run| {
        let (statuses, newest) = (run.statuses(), run.generation());
        let training = statuses.iter().filter(|s| s.phase == Phase::Training);
        training.filter(|s| s.generation == newest).count() == 3
    })
    .unwrap();
    let before = run.generation();
    run.scale(2).unwrap();
    run.wait_for("two workers", |run| {
        run.agents().len() == 2 && run.generation() > before
    })
    .unwrap();
    run.signal(Signal::INT).unwrap();
    assert_eq!(run.end().unwrap().code(), Some(130), "{}", run.output());
    assert!(run.agents().is_empty());
}

#[test]
fn straggler_leaves_first_on_scale_down() {
    let mut run = LocalRun::start(&job(3, 1_500), &[]).unwrap();
    run.slow_down(10).unwrap();
    run.slow_down_worker(1, 40).unwrap();
    run.wait_for("a report of the straggler", |run| {
        let mut reports = run.statuses().into_iter().filter_map(|it| it.progress);
        let factor = reports.find_map(|progress| progress.straggler);
        factor.is_some_and(|it| it.node_rank == 1 && it.factor > 2.0)
    })
    .unwrap();
    run.scale(2).unwrap();
    run.wait_for("two workers", |run| {
        run.agents().len() == 2 && run.generation() == 2
    })
    .unwrap();
    assert_eq!(run.workers(), [0, 2], "{}", run.output());
    let num_logged = run.output().matches("node rank 1 takes").count();
    assert_eq!(num_logged, 1, "{}", run.output());
    run.wait_for("a report without a straggler", |run| {
        let mut statuses = run.statuses().into_iter().filter(|it| it.generation == 2);
        statuses
            .any(|it| it.rank == Some(0) && it.progress.is_some_and(|it| it.straggler.is_none()))
    })
    .unwrap();
    run.slow_down(0).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
}
