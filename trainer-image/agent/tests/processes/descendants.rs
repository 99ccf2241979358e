//! What a process has started in a session of its own ends as the process does, and not later than the agent allows.

use std::path::Path;

use roundhouse_contract::Reason;

use crate::harness::{Agent, send, until};

/// A shell function that starts a process in a session of its own: it catches SIGTERM, and notes its pid.
const STRAY: &str = r#"
    cd $ROUNDHOUSE_RUN_DIR
    stray() {
        setsid bash -c "trap '$2' TERM; echo \$\$ > new.$1; mv new.$1 $1; while :; do sleep 0.02; done" > $1.log 2>&1 &
        until [ -e $1 ]; do sleep 0.01; done
    }"#;

fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|text| !text.contains(") Z "))
}

/// The pid that a file of the run directory names.
fn pid(agent: &Agent, name: &str) -> String {
    let text = until("a pid is noted", || {
        std::fs::read_to_string(agent.run_dir().join(name)).ok()
    });
    text.trim().to_owned()
}

#[test]
fn nothing_of_a_generation_runs_when_the_next_one_starts_whatever_session_it_is_in() {
    // As a launcher does that starts its workers with start_new_session.
    let script = format!(
        r#"{STRAY}
        [ -e old ] && kill -0 $(cat old) 2> /dev/null && echo the former one runs
        rm -f old; stray old "echo asked"; echo begun $ROUNDHOUSE_GENERATION; exec sleep 1000"#
    );
    let mut agent = Agent::start_restarting(&script);
    for generation in 1..=3 {
        agent.join(generation);
        let begun = format!("begun {generation}\n");
        until("a generation begins", || {
            agent.stdout().contains(&begun).then_some(())
        });
    }
    let last = pid(&agent, "old");
    agent.signal("TERM");
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(143), Reason::Left));
    assert!(!agent.stdout().contains("runs"), "{}", agent.stdout());
    assert!(!runs(&last), "what the last generation started");
    let log = std::fs::read_to_string(agent.run_dir().join("old.log")).unwrap();
    assert!(log.contains("asked"), "SIGTERM comes before SIGKILL");
}

#[test]
fn a_daemon_that_starts_itself_again_in_another_session_is_ended() {
    // Never more than two at a time, and two hundred at most.
    let next = r#"trap : TERM; [ $N -lt 200 ] || exit; export N=$((N + 1)); setsid bash -c "$F" & sleep 0.02"#;
    let script = format!("export N=0 F='{next}'; setsid bash -c \"$F\" & sleep 0.3; exit 9");
    let mut agent = Agent::start_script(1, &script);
    let (status, _) = agent.finish();
    assert_eq!(status.code(), Some(9), "{}", agent.stderr());
    let place = agent.run_dir().display().to_string();
    let is_left = |pid: &str| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&place)
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let left: Vec<String> = pids.filter(|pid| is_left(pid) && runs(pid)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_a_process_started_ends_with_it_and_what_its_sibling_started_does_not() {
    let script = format!(
        r#"{STRAY}
        if [ ! -e stray.$LOCAL_RANK ]; then
            stray stray.$LOCAL_RANK :
            echo '{{"phase":"Training","rank":'$LOCAL_RANK',"generation":4,"step":17}}' > rank-$LOCAL_RANK.json
            echo $$ > new.$LOCAL_RANK; mv new.$LOCAL_RANK main.$LOCAL_RANK
        fi
        while :; do sleep 0.02; done"#
    );
    let mut agent = Agent::start_script(2, &script);
    let victim = pid(&agent, "main.1");
    let (sibling, orphan) = (pid(&agent, "stray.0"), pid(&agent, "stray.1"));
    pid(&agent, "main.0");
    send("KILL", &victim);
    until("the orphan ends", || (!runs(&orphan)).then_some(()));
    assert!(runs(&sibling));
    agent.signal("TERM");
    agent.finish();
    assert!(!runs(&sibling));
}

#[test]
fn a_script_behind_a_shell_that_ends_at_once_may_use_its_grace() {
    let saves = "trap 'sleep 0.3; echo saved; exit' TERM; echo up; while :; do sleep 0.02; done";
    let script = format!("bash -c \"{saves}\"; true");
    let mut agent = Agent::start_script(1, &script);
    until("the script is up", || {
        agent.stdout().contains("up\n").then_some(())
    });
    agent.signal("TERM");
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(143), Reason::Left));
    assert!(agent.stdout().contains("saved\n"), "{}", agent.stdout());
}

#[test]
fn outside_of_a_pod_a_process_ends_with_an_agent_that_is_killed() {
    let mut agent = Agent::start_bound(
        "cd $ROUNDHOUSE_RUN_DIR; trap : TERM; echo $$ > new; mv new main; while :; do sleep 0.02; done",
    );
    let main = pid(&agent, "main");
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    until("its process ends", || (!runs(&main)).then_some(()));
}

#[test]
fn outside_of_a_pod_a_program_that_cannot_start_is_explained_as_in_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_roundhouse-agent"));
    let parent = std::process::id().to_string();
    let status = command
        .env(roundhouse_contract::environment::END_WITH_PARENT, parent)
        .env(
            roundhouse_contract::environment::RUN_DIR,
            dir.path().join("run"),
        )
        .args(["--http-address", "127.0.0.1:0", "--termination-log"])
        .arg(dir.path().join("termination"))
        .args(["--", "/no/such/program"])
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(64));
    let words = std::fs::read_to_string(dir.path().join("termination")).unwrap();
    assert!(words.contains("cannot start /no/such/program: "), "{words}");
}
