//! A script of the user in mode `InProcess`: it has no configuration of the trainer, and may join
//! or not.

use std::fs::File;
use std::process::Command;

use roundhouse_contract::Reason;
use tempfile::TempDir;

use crate::harness::{Agent, until};

/// Prints what it inherits, stays in the lobby until a file lets it train, and completes.
const JOINS: &str = r#"
    cd $ROUNDHOUSE_RUN_DIR
    status() { echo "$1" > new.$LOCAL_RANK; mv new.$LOCAL_RANK rank-$LOCAL_RANK.json; }
    echo "config ${ROUNDHOUSE_TRAINER_CONFIG_FILE-none}, unbuffered $PYTHONUNBUFFERED, umask $(umask)"
    status '{"phase":"Lobby","generation":0,"step":0}'
    while [ ! -e train ]; do sleep 0.02; done
    status '{"phase":"Done","rank":'$LOCAL_RANK',"generation":1,"step":9}'"#;

#[test]
fn joined_script_is_supervised_like_the_trainer() {
    let mut agent = Agent::start_script(2, JOINS);
    until("the worker is ready", || {
        (agent.get("/readyz").0 == 200).then_some(())
    });
    agent.join(1);
    assert_eq!(agent.get_as_reader("/trace?steps=1").0, 404);
    agent.touch("train");
    let (status, message) = agent.finish();
    assert_eq!(
        (status.code(), message.reason, message.step),
        (Some(0), Reason::Completed, 9)
    );
    let inherited = "config none, unbuffered 1, umask 0027\n";
    assert_eq!(agent.stdout().matches(inherited).count(), 2);
}

#[test]
fn unwritable_log_does_not_end_the_worker() {
    let dir = TempDir::new().unwrap();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let script = "echo trains; echo warns >&2; cd $ROUNDHOUSE_RUN_DIR
        echo '{\"phase\":\"Done\",\"rank\":0,\"generation\":1,\"step\":9}' > rank-0.json";
    let mut agent = Command::new(env!("CARGO_BIN_EXE_roundhouse-agent"));
    let agent = agent
        .args(["--http-address", "127.0.0.1:0", "--run-dir"])
        .arg(dir.path().join("run"))
        .args(["--", "bash", "-c", script])
        .stdout(full())
        .stderr(full());
    assert_eq!(agent.status().unwrap().code(), Some(0));
    let mut task = Command::new(env!("CARGO_BIN_EXE_roundhouse-agent"));
    let task = task.arg("environment").stdout(full()).stderr(full());
    assert_eq!(task.status().unwrap().code(), Some(1));
}

#[test]
fn script_that_never_joins_fails_permanently() {
    let alone = "echo trained on my own";
    // A sibling that has joined would wait indefinitely.
    let beside = format!("[ $LOCAL_RANK = 1 ] && exit 0; {JOINS}");
    for (procs, script) in [(1, alone), (2, &beside)] {
        let (status, message) = Agent::start_script(procs, script).finish();
        assert_eq!(
            (status.code(), message.reason),
            (Some(64), Reason::ConfigInvalid)
        );
        assert!(message.message.contains("roundhouse.join()"), "{message:?}");
    }
}

#[test]
fn script_that_leaves_its_loop_early_fails_permanently() {
    let progress = r#"{"generation":1,"worldSize":1,"step":10,"totalSteps":40,"epoch":0,"samplesPerSecond":1.0}"#;
    let status = format!(
        r#"{{"phase":"Training","rank":0,"generation":1,"step":10,"progress":{progress}}}"#
    );
    let script = format!("echo '{status}' > $ROUNDHOUSE_RUN_DIR/rank-0.json; exit 0");
    let (status, message) = Agent::start_script(1, &script).finish();
    assert_eq!(
        (status.code(), message.reason, message.step),
        (Some(64), Reason::ConfigInvalid, 10)
    );
    let said = message.message;
    assert!(
        said.contains("at step 10 of 40") && said.contains("with roundhouse.join"),
        "{said}"
    );
}

#[test]
fn script_may_leave_before_it_joins() {
    let script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done";
    let mut agent = Agent::start_script(1, script);
    until("the process is up", || {
        agent.stdout().contains("up").then_some(())
    });
    agent.signal("TERM");
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(143), Reason::Left));
}

/// Starts its own process, like PyTorch's data loader. On SIGTERM it waits until that process
/// reports whether it received SIGTERM too.
const HAS_A_LOADER: &str = r#"
    cd $ROUNDHOUSE_RUN_DIR
    answer() { echo "the loader $1"; touch answered; exit; }
    (trap 'answer "was asked"' TERM; echo up; while :; do sleep 0.02; [ -e asked ] && answer "works on"; done) &
    trap 'touch asked; until [ -e answered ]; do sleep 0.02; done; exit 143' TERM
    echo up; while :; do sleep 0.02; done"#;

fn asked_to_leave(agent: &mut Agent) -> String {
    until("both are up", || {
        (agent.stdout().matches("] up\n").count() == 2).then_some(())
    });
    agent.signal("TERM");
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(143), Reason::Left));
    agent.stdout()
}

#[test]
fn data_loaders_live_until_their_script_has_left() {
    let text = asked_to_leave(&mut Agent::start_script(1, HAS_A_LOADER));
    assert!(text.contains("the loader works on"), "{text}");
}

#[test]
fn restart_mode_asks_all_descendants_to_end() {
    let mode = ["--mode", "Restart"];
    let mut agent = Agent::start_with(TempDir::new().unwrap(), 1, HAS_A_LOADER, &mode);
    agent.join(1);
    let text = asked_to_leave(&mut agent);
    assert!(text.contains("the loader was asked"), "{text}");
}

#[test]
fn unreadable_progress_is_reported_once() {
    let script = r#"
        report() { echo "$1" > $ROUNDHOUSE_PROGRESS_FILE.new; mv $ROUNDHOUSE_PROGRESS_FILE.new $ROUNDHOUSE_PROGRESS_FILE; }
        report '{"step": 7.0, "totalSteps": 9, "loss": NaN}'
        until [ -e $ROUNDHOUSE_RUN_DIR/next ]; do sleep 0.02; done
        report '{"epoch": 3}'; sleep 1; report '{"epoch": 4}'; sleep 0.5; exit 9"#;
    let mut agent = Agent::start_restarting(script);
    agent.join(1);
    until("its step is shown", || {
        let (_, progress) = agent.get("/progress");
        (progress.contains("\"step\":7") && !progress.contains("loss")).then_some(())
    });
    agent.touch("next");
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.step), (Some(9), 7));
    let log = agent.stderr();
    assert_eq!(log.matches("it has no \"step\"").count(), 1, "{log}");
}
