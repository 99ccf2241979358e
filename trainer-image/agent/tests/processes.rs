//! The real program over small shell programs: ends, signals, zombies, readiness, metrics.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use roundhouse_contract::{RankStatus, TerminationMessage, paths, termination::Reason};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(20);

struct Agent {
    child: Child,
    dir: TempDir,
    address: String,
}

impl Agent {
    fn start(procs: u32, script: &str) -> Self {
        Self::start_in(TempDir::new().unwrap(), procs, script)
    }

    fn start_in(dir: TempDir, procs: u32, script: &str) -> Self {
        Self::start_with(dir, procs, script, &[])
    }

    fn start_with(dir: TempDir, procs: u32, script: &str, options: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_roundhouse-agent"))
            .env("NCCL_NVLS_ENABLE", "2")
            .args(options)
            .args(["--procs", &procs.to_string(), "--grace-seconds", "1"])
            .args(["--http-address", "127.0.0.1:0", "--worker-index", "3"])
            .arg("--run-dir")
            .arg(dir.path().join("run"))
            .arg("--termination-log")
            .arg(dir.path().join("termination"))
            .args(["--", "bash", "-c", script])
            .stdout(std::fs::File::create(dir.path().join("stdout")).unwrap())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        let mut log = std::fs::File::create(dir.path().join("stderr")).unwrap();
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut log));
        Self {
            child,
            dir,
            address,
        }
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            body.to_owned(),
        )
    }

    fn run_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("run")
    }

    fn stdout(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stdout")).unwrap()
    }

    fn stderr(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stderr")).unwrap()
    }

    fn signal(&self, name: &str) {
        send(name, &self.child.id().to_string());
    }

    fn finish(&mut self) -> (ExitStatus, TerminationMessage) {
        let status = until("the agent ends", || self.child.try_wait().unwrap());
        let text = std::fs::read_to_string(self.dir.path().join("termination")).unwrap();
        (status, TerminationMessage::parse(&text).unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn send(signal: &str, pid: &str) {
    let sent = Command::new("kill").args(["-s", signal, pid]).status();
    assert!(sent.unwrap().success());
}

fn write_status(run_dir: &Path, local_rank: u32, text: &str) {
    std::fs::write(paths::rank_status(run_dir, local_rank), text).unwrap();
}

#[test]
fn all_processes_done_is_completed() {
    let mut agent = Agent::start(2, "echo hello from $LOCAL_RANK of $LOCAL_WORLD_SIZE");
    let (status, message) = agent.finish();
    assert_eq!(
        (status.code(), message.reason),
        (Some(0), Reason::Completed)
    );
    let text = agent.stdout();
    assert!(text.contains("[worker 3.1] hello from 1 of 2\n"), "{text}");
}

#[test]
fn the_first_failure_ends_the_others_and_explains_itself() {
    let mut agent = Agent::start(
        2,
        "[ $LOCAL_RANK = 0 ] && exec sleep 1000; echo broken >&2; exit 65",
    );
    let (status, message) = agent.finish();
    assert_eq!(
        (status.code(), message.reason),
        (Some(65), Reason::DataInvalid)
    );
    assert!(message.message.contains("broken"), "{message:?}");
}

#[test]
fn a_process_leaves_words_of_its_own() {
    let script = r#"echo '{"reason":"DataInvalid","generation":0,"step":0,"message":"/data/x is torn"}' \
        > $ROUNDHOUSE_RUN_DIR/rank-0.failure.json; exit 65"#;
    let (_, message) = Agent::start(1, script).finish();
    assert_eq!(message.message, "/data/x is torn");
}

#[test]
fn a_killed_process_is_the_cause_and_not_the_peer_that_lost_it() {
    let script = "if [ $LOCAL_RANK = 1 ]; then kill -9 $$; fi; exit 75";
    let (status, message) = Agent::start(2, script).finish();
    assert_eq!((status.code(), message.reason), (Some(137), Reason::Killed));
}

#[test]
fn sigterm_reaches_the_processes_and_the_agent_says_it_left() {
    let mut agent = Agent::start(
        1,
        "trap 'echo leaving; exit 143' TERM; echo up; while :; do sleep 0.05; done",
    );
    until("the process is up", || {
        agent.stdout().contains("up").then_some(())
    });
    agent.signal("TERM");
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(143), Reason::Left));
    assert!(agent.stdout().contains("leaving"));
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_after_the_grace() {
    let mut agent = Agent::start(1, "trap '' TERM; echo up; while :; do sleep 0.05; done");
    until("the process is up", || {
        agent.stdout().contains("up").then_some(())
    });
    agent.signal("TERM");
    assert_eq!(agent.finish().0.code(), Some(143));
}

#[test]
fn readiness_progress_and_metrics_come_from_the_run_directory() {
    let agent = Agent::start(2, "exec sleep 1000");
    assert_eq!(agent.get("/healthz").0, 200);
    let (code, text) = agent.get("/readyz");
    assert_eq!(code, 503);
    assert!(text.contains("[0, 1] of 2"), "{text}");
    assert_eq!(agent.get("/progress").0, 204);

    write_status(
        &agent.run_dir(),
        0,
        r#"{"phase":"Lobby","generation":0,"step":0}"#,
    );
    let progress = r#"{"generation":4,"worldSize":2,"step":7,"totalSteps":9,"epoch":0,"loss":0.5,"samplesPerSecond":3.0}"#;
    let training =
        format!(r#"{{"phase":"Training","rank":5,"generation":4,"step":7,"progress":{progress}}}"#);
    write_status(&agent.run_dir(), 1, &training);
    std::fs::write(
        paths::rank_metrics(&agent.run_dir(), 1),
        "# TYPE loss gauge\nloss 0.5\n",
    )
    .unwrap();
    assert_eq!(agent.get("/readyz").0, 200);
    assert_eq!(agent.get("/progress"), (200, progress.to_owned()));
    let (_, metrics) = agent.get("/metrics");
    assert!(metrics.contains("loss{rank=\"5\"} 0.5\n"), "{metrics}");
    assert!(
        metrics.contains("roundhouse_agent_generation 4\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("roundhouse_agent_process_up{local_rank=\"1\"} 1\n"),
        "{metrics}"
    );
}

#[test]
fn what_an_earlier_container_left_is_removed() {
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    std::fs::create_dir_all(&run).unwrap();
    write_status(&run, 0, r#"{"phase":"Training","generation":9,"step":7}"#);
    let agent = Agent::start_in(dir, 1, "exec sleep 1000");
    assert_eq!(agent.get("/readyz").0, 503);
}

#[test]
fn a_program_that_does_not_exist_is_named() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("termination");
    let output = Command::new(env!("CARGO_BIN_EXE_roundhouse-agent"))
        .args(["--http-address", "127.0.0.1:0", "--run-dir"])
        .arg(dir.path().join("run"))
        .arg("--termination-log")
        .arg(&log)
        .args(["--", "/no/such/program"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(70));
    let message = TerminationMessage::parse(&std::fs::read_to_string(log).unwrap()).unwrap();
    assert!(message.message.contains("/no/such/program"), "{message:?}");
}

/// Steps without end, and its pid.
const STEPS: &str = r#"echo pid $$; step=0; while :; do step=$((step + 1))
    echo '{"phase":"Training","rank":4,"generation":2,"step":'$step'}' > $ROUNDHOUSE_RUN_DIR/new.$LOCAL_RANK
    mv $ROUNDHOUSE_RUN_DIR/new.$LOCAL_RANK $ROUNDHOUSE_RUN_DIR/rank-$LOCAL_RANK.json; sleep 0.1; done"#;

#[test]
fn a_process_that_stops_is_shown_and_ends_the_worker_as_stalled() {
    let dir = TempDir::new().unwrap();
    let mut agent = Agent::start_with(dir, 2, STEPS, &["--stall-timeout-seconds", "2"]);
    let pid = until("a process tells its pid", || {
        let text = agent.stdout();
        let line = text.lines().find(|line| line.contains("pid "))?;
        line.rsplit(' ').next().map(str::to_owned)
    });
    until("its steps have been seen", || {
        let text = std::fs::read_to_string(paths::rank_status(&agent.run_dir(), 0)).ok()?;
        let status: RankStatus = serde_json::from_str(&text).ok()?;
        (status.step > 20).then_some(())
    });
    send("STOP", &pid);
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(76), Reason::Stalled));
    assert_eq!((message.rank, message.generation), (Some(4), 2));
    assert!(message.message.starts_with("no step for "), "{message:?}");
    let log = agent.stderr();
    let shown = log.lines().find(|line| line.contains("State: T (stopped)"));
    assert!(
        shown.is_some_and(|line| line.contains("Name: bash")),
        "{log}"
    );
    assert!(
        log.contains(&format!("thread {pid} bash: T (stopped)")),
        "{log}"
    );
}

#[test]
fn a_process_that_waits_in_the_lobby_is_left_alone() {
    let lobby = r#"echo '{"phase":"Lobby","generation":0,"step":0}' > $ROUNDHOUSE_RUN_DIR/rank-0.json
        for wait in 1 2 3; do sleep 1; done"#;
    let dir = TempDir::new().unwrap();
    let mut agent = Agent::start_with(dir, 1, lobby, &["--stall-timeout-seconds", "1"]);
    assert_eq!(agent.finish().0.code(), Some(0), "{}", agent.stderr());
}

#[test]
fn collectives_of_the_processes_give_up_before_the_watchdog() {
    let dir = TempDir::new().unwrap();
    let script = "echo timeout $ROUNDHOUSE_COLLECTIVE_TIMEOUT_SECONDS";
    let mut agent = Agent::start_with(dir, 1, script, &["--stall-timeout-seconds", "20"]);
    agent.finish();
    assert!(agent.stdout().contains("timeout 10\n"));
}

#[test]
fn processes_are_told_to_outlive_their_nccl_groups_and_the_users_word_counts() {
    let script = "echo settings $TORCH_NCCL_ASYNC_ERROR_HANDLING $TORCH_NCCL_NONBLOCKING_TIMEOUT $NCCL_NVLS_ENABLE";
    let mut agent = Agent::start(1, script);
    agent.finish();
    let text = agent.stdout();
    assert!(text.contains("settings 0 30 2\n"), "{text}");
}
