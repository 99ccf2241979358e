//! `run --local` when its output cannot be written, and after it was killed. The agent of these
//! tests only sleeps.

#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const JOB: &str = r#"{"apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "digits"},
    "spec": {"workers": {"replicas": 2}, "trainer": {"model": {"name": "mlp"}, "data": {"format": "idx"},
    "globalBatchSize": 10, "epochs": 1}}}"#;
/// Exit code of an interrupted run.
const INTERRUPTED: Option<i32> = Some(130);
const DEADLINE: Duration = Duration::from_secs(20);

fn run(directory: &Path, stdout: Stdio) -> Child {
    let agent = directory.join("agent");
    std::fs::write(&agent, "#!/bin/sh\necho $$ >> $0.pids\nexec sleep 600\n").unwrap();
    std::fs::set_permissions(&agent, Permissions::from_mode(0o755)).unwrap();
    std::fs::write(directory.join("job.json"), JOB).unwrap();
    Command::new(env!("CARGO_BIN_EXE_kubectl-roundhouse"))
        .args(["run", "--local", "--filename"])
        .arg(directory.join("job.json"))
        .arg("--data")
        .arg(directory)
        .arg("--dir")
        .arg(directory.join("run"))
        .args([Path::new("--agent"), &agent, Path::new("--trainer"), &agent])
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ends(mut child: Child) {
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < DEADLINE, "not in time");
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut error = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut error)
        .unwrap();
    assert_eq!((status.code(), &*error), (INTERRUPTED, ""));
}

/// Waits until both agents have started.
fn waits_for_agents(directory: &Path) {
    let begun = Instant::now();
    while pids(directory).len() < 2 {
        assert!(begun.elapsed() < DEADLINE, "not in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn interrupt(child: &Child) {
    let interrupt = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(interrupt.unwrap().success());
}

/// Pids of the agents that have started.
fn pids(directory: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(directory.join("agent.pids")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn closed_output_ends_the_run_and_its_workers() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = run(directory.path(), Stdio::piped());
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    drop(reader);
    ends(child);
    for pid in pids(directory.path()) {
        assert!(!Path::new("/proc").join(&pid).exists(), "{pid}");
    }
}

#[test]
fn run_continues_when_its_output_disk_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let child = run(directory.path(), full.into());
    waits_for_agents(directory.path());
    std::thread::sleep(Duration::from_secs(1));
    interrupt(&child);
    ends(child);
}

#[test]
fn next_run_removes_worker_files_of_a_killed_run() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let link = directories[0].path().join("run/workers");
    let mut killed = run(directories[0].path(), Stdio::null());
    waits_for_agents(directories[0].path());
    let files = std::fs::read_link(&link).unwrap();
    assert!(files.is_dir());
    killed.kill().unwrap();
    killed.wait().unwrap();
    for pid in pids(directories[0].path()) {
        let ended = Command::new("kill").args(["-KILL", &pid]).status();
        assert!(ended.unwrap().success());
    }
    let next = run(directories[1].path(), Stdio::null());
    waits_for_agents(directories[1].path());
    assert!(!files.exists(), "{}", files.display());
    interrupt(&next);
    ends(next);
}
