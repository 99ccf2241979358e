//! Custom commands in the local executor: scripts that join, and scripts in restart mode.

use roundhouse_contract::environment;
use roundhouse_tests::local::{self, LocalRun, Program, programs};
use roundhouse_tests::processes::send;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A job that runs a command in each of two workers.
fn job(mode: &str, command: &[String]) -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "script"},
        "spec": {
            "workers": {"replicas": 2, "minReplicas": 1, "template": {"spec": {"containers": [
                {"name": "trainer", "image": "not-used:1", "command": command},
            ]}}},
            // Training starts when both workers are ready.
            "elastic": {"mode": mode, "joinWindowSeconds": 60},
        },
    })
}

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).collect()
}

/// The command of a process that joins. The built-in trainer has the same protocol as a script, so
/// it replaces one here. It reads its configuration from a file instead of the job.
fn joins(files: &TempDir, steps: u64) -> Vec<String> {
    let trainer = local::job(1, steps)["spec"]["trainer"].take();
    let config = files.path().join("config.json");
    std::fs::write(&config, trainer.to_string()).unwrap();
    let Program { trainer, data } = Program::built_in().unwrap();
    vec![
        "env".to_owned(),
        format!("{}={}", environment::TRAINER_CONFIG_FILE, config.display()),
        format!("{}={}", environment::DATA_DIR, data.display()),
        trainer.display().to_string(),
    ]
}

#[test]
fn joined_script_survives_kill_of_the_other_worker() {
    let files = tempfile::tempdir().unwrap();
    let mut run = LocalRun::start(&job("InProcess", &joins(&files, 1_000)), &[]).unwrap();
    run.slow_down(3).unwrap();
    run.wait_for("steps", |run| run.step() > 20).unwrap();
    let before = run.agents();
    let (victim, survivor) = (before[0].ranks[0], before[1].ranks[0]);
    assert!(send(victim, Signal::KILL));
    run.wait_for("both workers in one generation", |run| {
        run.generation() >= 3 && run.agents().len() == 2
    })
    .unwrap();
    let ranks: Vec<u32> = run.agents().into_iter().flat_map(|it| it.ranks).collect();
    assert!(ranks.contains(&survivor), "{}", run.output());
    assert!(run.end().unwrap().success(), "{}", run.output());
    assert!(run.output().contains("image not-used:1"));
    run.audit().unwrap();
}

#[test]
fn joined_script_behind_a_shell_ends_with_its_agent() {
    let files = tempfile::tempdir().unwrap();
    let in_shell = format!("echo installing; {}; exit $?", joins(&files, 300).join(" "));
    let mut run =
        LocalRun::start(&job("InProcess", &words(&["sh", "-c", &in_shell])), &[]).unwrap();
    run.slow_down(3).unwrap();
    run.wait_for("steps", |run| run.step() > 20).unwrap();
    assert!(send(run.agents()[0].pid, Signal::KILL));
    run.wait_for("both workers in one generation", |run| {
        run.generation() >= 3 && run.agents().len() == 2
    })
    .unwrap();
    run.slow_down(0).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    run.audit().unwrap();
}

#[test]
fn script_without_join_fails_with_the_missing_call() {
    let mut run = LocalRun::start(&job("InProcess", &words(&["true"])), &[]).unwrap();
    assert_eq!(run.end().unwrap().code(), Some(1), "{}", run.output());
    let output = run.output();
    assert!(output.contains("roundhouse.join()"), "{output}");
}

/// Whether the output names these processes.
fn lists(run: &LocalRun, pids: &[u32]) -> bool {
    let output = run.output();
    let lines = output.lines().filter(|line| line.contains("Processes: "));
    let words: Vec<&str> = lines.flat_map(|line| line.split([' ', ','])).collect();
    pids.iter().all(|pid| words.contains(&&*pid.to_string()))
}

#[test]
fn restart_mode_restarts_the_script_in_all_workers() {
    let files = tempfile::tempdir().unwrap();
    let script = programs().unwrap().join("counting-script");
    let (script, directory) = (
        script.display().to_string(),
        files.path().display().to_string(),
    );
    let command = words(&[
        &script,
        "--steps",
        "200",
        "--step-millis",
        "20",
        "--directory",
        &directory,
    ]);
    let mut run = LocalRun::start(&job("Restart", &command), &[]).unwrap();
    run.wait_for("steps", |run| run.step() > 20).unwrap();
    let before: Vec<u32> = run.agents().into_iter().flat_map(|it| it.ranks).collect();
    run.wait_for("their list", |run| lists(run, &before))
        .unwrap();
    assert!(send(before[0], Signal::KILL));
    run.wait_for("steps of a later generation", |run| {
        let statuses = run.statuses().into_iter();
        statuses
            .filter(|it| it.generation > 1 && it.progress.is_some())
            .count()
            == 2
    })
    .unwrap();
    let after: Vec<u32> = run.agents().into_iter().flat_map(|it| it.ranks).collect();
    assert!(
        after.iter().all(|pid| !before.contains(pid)),
        "{}",
        run.output()
    );
    run.wait_for("their list", |run| lists(run, &after))
        .unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    assert!(run.output().contains("counted to 200 in 200 steps"));
}
