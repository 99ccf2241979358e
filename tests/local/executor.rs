//! What a person sees who runs a job on one machine.

use roundhouse_contract::Phase;
use roundhouse_tests::local::{LocalRun, job};
use roundhouse_tests::processes::send;
use roundhouse_tests::weights::difference;
use rustix::process::Signal;

/// Added to each step, so that an event finds the job training.
const PAUSE: u64 = 3;

#[test]
fn a_killed_worker_is_started_again_and_the_final_weights_are_the_same() {
    let mut alone = LocalRun::start(&job(1, 1_000), &[]).unwrap();
    assert!(alone.end().unwrap().success(), "{}", alone.output());
    let mut run = LocalRun::start(&job(2, 1_000), &[]).unwrap();
    run.slow_down(PAUSE).unwrap();
    run.wait_for("steps", |run| run.step() > 20).unwrap();
    let victim = run.agents()[0].ranks[0];
    assert!(send(victim, Signal::KILL));
    run.wait_for("both again", |run| {
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
fn a_killed_process_of_a_worker_is_started_again_beside_its_sibling() {
    let mut wanted = job(1, 2_000);
    wanted["spec"]["workers"]["procsPerWorker"] = 2.into();
    let mut run = LocalRun::start(&wanted, &[]).unwrap();
    run.slow_down(20).unwrap();
    run.wait_for("steps", |run| run.step() > 20).unwrap();
    let before = run.agents().remove(0);
    let [sibling, victim] = before.ranks[..] else {
        panic!("two processes: {before:?}");
    };
    assert!(send(victim, Signal::KILL));
    run.wait_for("both in a later generation", |run| {
        let trains = |local_rank| {
            let told = run.statuses_of(local_rank).into_iter();
            told.filter(|it| it.generation > 1 && it.phase == Phase::Training)
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
fn saving_the_file_rescales_the_job() {
    let mut run = LocalRun::start(&job(1, 1_000_000), &[]).unwrap();
    run.wait_for("steps", |run| run.step() > 5).unwrap();
    run.scale(3).unwrap();
    run.wait_for("three workers in one world", |run| {
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
fn the_worker_that_the_others_wait_for_goes_first() {
    let mut run = LocalRun::start(&job(3, 1_500), &[]).unwrap();
    run.slow_down(10).unwrap();
    run.slow_down_worker(1, 40).unwrap();
    run.wait_for("word of the straggler", |run| {
        let mut told = run.statuses().into_iter().filter_map(|it| it.progress);
        let factor = told.find_map(|progress| progress.straggler);
        factor.is_some_and(|it| it.node_rank == 1 && it.factor > 2.0)
    })
    .unwrap();
    run.scale(2).unwrap();
    run.wait_for("two workers", |run| {
        run.agents().len() == 2 && run.generation() == 2
    })
    .unwrap();
    assert_eq!(run.workers(), [0, 2], "{}", run.output());
    let said = run.output().matches("node rank 1 takes").count();
    assert_eq!(said, 1, "{}", run.output());
    run.wait_for("word that it is over", |run| {
        let mut told = run.statuses().into_iter().filter(|it| it.generation == 2);
        told.any(|it| it.rank == Some(0) && it.progress.is_some_and(|it| it.straggler.is_none()))
    })
    .unwrap();
    run.slow_down(0).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
}

#[test]
fn a_worker_that_hangs_is_one_incident() {
    let mut job = job(3, 1_000);
    job["spec"]["stallTimeoutSeconds"] = 6.into();
    // A second incident would end it.
    job["spec"]["failurePolicy"] = serde_json::json!({"maxIncidents": 1});
    let mut run = LocalRun::start(&job, &[]).unwrap();
    run.slow_down(20).unwrap();
    // Soon after a generation's issue its members' words are not believed at once.
    run.wait_for("steps", |run| run.step() > 200).unwrap();
    assert!(send(run.agents()[1].ranks[0], Signal::STOP));
    run.wait_for("word of its end", |run| run.output().contains("Stalled"))
        .unwrap();
    assert!(run.output().contains("PeersLost"), "{}", run.output());
    run.slow_down(0).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
}

#[test]
fn a_job_that_was_suspended_goes_on_bit_for_bit() {
    let mut straight = LocalRun::start(&job(2, 1_500), &[]).unwrap();
    assert!(straight.end().unwrap().success(), "{}", straight.output());
    let mut run = LocalRun::start(&job(2, 1_500), &[]).unwrap();
    run.slow_down(PAUSE).unwrap();
    run.wait_for("steps", |run| run.step() > 50).unwrap();
    run.edit(|spec| spec["suspend"] = true.into()).unwrap();
    run.wait_for("nobody", |run| run.agents().is_empty())
        .unwrap();
    run.wait_for("word of what is saved", |run| {
        run.output()
            .contains("Suspended: no workers; the newest known checkpoint holds")
    })
    .unwrap();
    run.edit(|spec| spec["suspend"] = false.into()).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    run.audit().unwrap();
    assert!(
        run.weights().unwrap() == straight.weights().unwrap(),
        "some bits differ"
    );
    assert!(
        run.output().contains("loaded checkpoint"),
        "{}",
        run.output()
    );
}

#[test]
fn a_second_run_with_its_directory_goes_on_where_the_first_was() {
    let mut first = LocalRun::start(&job(2, 1_500), &[]).unwrap();
    first.slow_down(PAUSE).unwrap();
    first.wait_for("steps", |run| run.step() > 50).unwrap();
    first.signal(Signal::INT).unwrap();
    assert_eq!(first.end().unwrap().code(), Some(130), "{}", first.output());
    let saved = format!("is saved in {}", first.dir().join("state").display());
    assert!(first.output().contains(&saved), "{}", first.output());
    first.again(&[]).unwrap();
    assert!(first.end().unwrap().success(), "{}", first.output());
    first.audit().unwrap();
    assert!(
        first.output().contains("loaded checkpoint"),
        "{}",
        first.output()
    );
}

#[test]
fn a_job_whose_volume_hangs_says_so_and_succeeds_only_once_its_result_is_saved() {
    const CHECKPOINT_IO_TIMEOUT: (&str, &str) = ("ROUNDHOUSE_CHECKPOINT_IO_TIMEOUT_SECONDS", "5");
    let mut wanted = job(2, 1_500);
    wanted["spec"]["checkpoint"] =
        serde_json::json!({"volume": {"hostPath": {"path": "/srv"}}, "everySteps": 50});
    let mut run = LocalRun::start(&wanted, &[CHECKPOINT_IO_TIMEOUT]).unwrap();
    run.slow_down(PAUSE).unwrap();
    run.wait_for("steps", |run| run.step() > 120).unwrap();
    run.pace_volume("hold").unwrap();
    let says = |words: &'static str| move |run: &LocalRun| run.output().contains(words);
    run.wait_for("word of it", says("trouble with checkpoints: "))
        .unwrap();
    run.wait_for("its end", says("VolumeFailed")).unwrap();
    assert!(!run.output().contains("Succeeded"), "{}", run.output());
    run.pace_volume("0").unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    run.audit().unwrap();
    let output = run.output();
    assert!(output.contains("loaded checkpoint"), "{output}");
}

#[test]
fn the_end_of_the_executor_ends_all_its_processes() {
    let mut run = LocalRun::start(&job(2, 1_000_000), &[]).unwrap();
    run.wait_for("steps", |run| run.step() > 5).unwrap();
    let agents = run.agents();
    let all: Vec<u32> = agents
        .iter()
        .flat_map(|agent| [agent.ranks.as_slice(), &[agent.pid]].concat())
        .collect();
    assert_eq!(all.len(), 4);
    run.signal(Signal::KILL).unwrap();
    run.end().unwrap();
    let alive = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(5);
    while all.iter().any(alive) {
        assert!(std::time::Instant::now() < deadline, "{all:?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_job_that_cannot_train_fails_with_the_reason() {
    let mut job = job(2, 100);
    let empty = tempfile::tempdir().unwrap();
    let path = empty.path().display().to_string();
    job["spec"]["trainer"]["data"]["path"] = path.clone().into();
    let mut run = LocalRun::start(&job, &[]).unwrap();
    assert_eq!(run.end().unwrap().code(), Some(1));
    let output = run.output();
    assert!(
        output.contains("DataInvalid") && output.contains(&path),
        "{output}"
    );
}

#[test]
fn a_directory_is_for_one_run_at_a_time_and_a_worker_is_known_by_its_process() {
    let mut run = LocalRun::start(&job(2, 1_000_000), &[]).unwrap();
    run.wait_for("steps", |run| run.step() > 5).unwrap();
    let output = run.output();
    for rank in run.agents().iter().flat_map(|agent| &agent.ranks) {
        let processes = output.lines().find(|line| line.contains("Processes: "));
        assert!(processes.unwrap().contains(&rank.to_string()), "{output}");
    }
    let refused = run.beside().unwrap();
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("another run (pid "), "{said}");
    assert!(run.agents().len() == 2, "the first one continues");
}
