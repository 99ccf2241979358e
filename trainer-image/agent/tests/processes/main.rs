//! The real agent with small shell programs: exits, signals, orphans, readiness, metrics.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use roundhouse_contract::{RankStatus, TerminationMessage, paths, termination::Reason};
use tempfile::TempDir;

use harness::{Agent, send, until, write_status};

mod connections;
mod descendants;
mod gpu_check;
mod harness;
mod in_place;
mod lives;
mod posts;
mod script;
mod sharded;

#[test]
fn worker_completes_when_all_processes_complete() {
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
fn first_failure_ends_the_others_and_is_explained() {
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
fn report_of_a_process_is_the_termination_message() {
    let script = r#"echo '{"reason":"DataInvalid","generation":0,"step":0,"message":"/data/x is torn"}' \
        > $ROUNDHOUSE_RUN_DIR/rank-0.failure.json; exit 65"#;
    let (_, message) = Agent::start(1, script).finish();
    assert_eq!(message.message, "/data/x is torn");
}

#[test]
fn killed_process_is_the_cause_not_its_peer() {
    let script = "if [ $LOCAL_RANK = 1 ]; then kill -9 $$; fi; exit 75";
    let (status, message) = Agent::start(2, script).finish();
    assert_eq!((status.code(), message.reason), (Some(137), Reason::Killed));
}

#[test]
fn sigterm_reaches_the_processes() {
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
fn process_that_ignores_sigterm_is_killed() {
    let mut agent = Agent::start(1, "trap '' TERM; echo up; while :; do sleep 0.05; done");
    until("the process is up", || {
        agent.stdout().contains("up").then_some(())
    });
    agent.signal("TERM");
    assert_eq!(agent.finish().0.code(), Some(143));
}

#[test]
fn readiness_and_metrics_come_from_the_run_directory() {
    let (dir, script) = (TempDir::new().unwrap(), "exec sleep 1000");
    let agent = Agent::start_with(dir, 2, script, &["--job-uid", "u-1"]);
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
    let formed = r#"{"jobUid":"u-1","formed":0}"#.to_owned();
    assert_eq!(agent.get("/progress"), (200, formed));
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
    let expected = progress.replacen('{', r#"{"jobUid":"u-1","#, 1);
    assert_eq!(agent.get("/progress"), (200, expected));
    until("both processes were started", || {
        let (_, metrics) = agent.get("/metrics");
        let up = |local| format!("roundhouse_agent_process_up{{local_rank=\"{local}\"}} 1\n");
        (metrics.contains(&up(0)) && metrics.contains(&up(1))).then_some(())
    });
    let (_, metrics) = agent.get("/metrics");
    assert!(metrics.contains("loss{rank=\"5\"} 0.5\n"), "{metrics}");
    assert!(
        metrics.contains("roundhouse_agent_generation 4\n"),
        "{metrics}"
    );
}

#[test]
fn files_of_an_earlier_container_are_removed() {
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    std::fs::create_dir_all(&run).unwrap();
    write_status(&run, 0, r#"{"phase":"Training","generation":9,"step":7}"#);
    let agent = Agent::start_in(dir, 1, "exec sleep 1000");
    assert_eq!(agent.get("/readyz").0, 503);
}

#[test]
fn missing_program_is_named() {
    // The program of the built-in trainer is part of the product; the program of a script is the
    // user's.
    for (options, code) in [(&["--trainer-config-file", "/c"][..], 70), (&[], 64)] {
        let dir = TempDir::new().unwrap();
        let log = dir.path().join("termination");
        let output = Command::new(env!("CARGO_BIN_EXE_roundhouse-agent"))
            .args(["--http-address", "127.0.0.1:0", "--run-dir"])
            .arg(dir.path().join("run"))
            .arg("--termination-log")
            .arg(&log)
            .args(options)
            .args(["--", "/no/such/program"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code));
        let message = TerminationMessage::parse(&std::fs::read_to_string(log).unwrap()).unwrap();
        assert!(message.message.contains("/no/such/program"), "{message:?}");
    }
}

/// The nonce of [`FIRST_GENERATION`], which clients that may read the job know.
const NONCE: &str = "00112233445566778899aabbccddeeff";
const FIRST_GENERATION: &str = r#"{"generation":1,"action":"Join","nodeRank":0,"nodes":1,"procsPerWorker":1,
    "master":{"address":"127.0.0.1","port":1},"members":"","nonce":"00112233445566778899aabbccddeeff",
    "incarnation":{"podUid":"","restarts":0},"issuedAt":""}"#;

/// Reports steps indefinitely, and the pid of the process.
const STEPS: &str = r#"echo pid $$; step=0; while :; do step=$((step + 1))
    echo '{"phase":"Training","rank":4,"generation":2,"step":'$step'}' > $ROUNDHOUSE_RUN_DIR/new.$LOCAL_RANK
    mv $ROUNDHOUSE_RUN_DIR/new.$LOCAL_RANK $ROUNDHOUSE_RUN_DIR/rank-$LOCAL_RANK.json; sleep 0.1; done"#;

#[test]
fn stopped_process_ends_the_worker_as_stalled() {
    let dir = TempDir::new().unwrap();
    let mut agent = Agent::start_with(dir, 2, STEPS, &["--stall-timeout-seconds", "2"]);
    let pid = until("a process logs its pid", || {
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
fn process_in_the_lobby_does_not_stall() {
    let lobby = r#"echo '{"phase":"Lobby","generation":0,"step":0}' > $ROUNDHOUSE_RUN_DIR/rank-0.json
        for wait in 1 2 3; do sleep 1; done"#;
    let dir = TempDir::new().unwrap();
    let mut agent = Agent::start_with(dir, 1, lobby, &["--stall-timeout-seconds", "1"]);
    assert_eq!(agent.finish().0.code(), Some(0), "{}", agent.stderr());
}

#[test]
fn collectives_time_out_before_the_watchdog() {
    let dir = TempDir::new().unwrap();
    let script = "echo timeout $ROUNDHOUSE_COLLECTIVE_TIMEOUT_SECONDS";
    let mut agent = Agent::start_with(dir, 1, script, &["--stall-timeout-seconds", "20"]);
    agent.finish();
    assert!(agent.stdout().contains("timeout 10\n"));
}

#[test]
fn files_of_processes_are_private_to_user_and_group() {
    let script = "umask; mkdir $ROUNDHOUSE_RUN_DIR/made; touch $ROUNDHOUSE_RUN_DIR/made/file
        stat -c %a $ROUNDHOUSE_RUN_DIR/made $ROUNDHOUSE_RUN_DIR/made/file";
    let mut agent = Agent::start(1, script);
    agent.finish();
    let text = agent.stdout();
    for line in ["0027\n", " 750\n", " 640\n"] {
        assert!(text.contains(line), "{text}");
    }
    // A script keeps the limits and modes of its image.
    let mode = ["--mode", "Restart"];
    let mut agent = Agent::start_with(TempDir::new().unwrap(), 1, "umask", &mode);
    agent.join(1);
    agent.finish();
    let own = Command::new("bash").args(["-c", "umask"]).output().unwrap();
    let own = String::from_utf8(own.stdout).unwrap();
    assert!(agent.stdout().ends_with(&own), "{}", agent.stdout());
}

#[test]
fn processes_receive_the_grace_period_of_their_pod() {
    let script = "echo grace $ROUNDHOUSE_TERMINATION_GRACE_SECONDS";
    let arguments = ["--termination-grace-seconds", "600"];
    let mut agent = Agent::start_with(TempDir::new().unwrap(), 1, script, &arguments);
    agent.finish();
    assert!(agent.stdout().contains("grace 600\n"));
}

#[test]
fn nccl_settings_of_the_user_have_priority() {
    let script = "echo settings $TORCH_NCCL_ASYNC_ERROR_HANDLING $TORCH_NCCL_NONBLOCKING_TIMEOUT $NCCL_NVLS_ENABLE";
    let mut agent = Agent::start(1, script);
    agent.finish();
    let text = agent.stdout();
    assert!(text.contains("settings 0 120 2\n"), "{text}");
}
