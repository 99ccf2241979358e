//! A descendant in its own session ends with its process, within the time that the agent allows.

use std::path::Path;

use roundhouse_contract::Reason;

use crate::harness::{Agent, send, until};

/// A shell function that starts a process in its own session. The process catches SIGTERM and
/// writes its pid into a file.
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

/// Reads the pid from a file of the run directory.
fn pid(agent: &Agent, name: &str) -> String {
    let text = until("a pid is noted", || {
        std::fs::read_to_string(agent.run_dir().join(name)).ok()
    });
    text.trim().to_owned()
}

#[test]
fn no_process_survives_its_generation_in_any_session() {
    // The script starts its workers like a launcher that uses start_new_session.
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
    assert!(!runs(&last), "a process of the last generation");
    let log = std::fs::read_to_string(agent.run_dir().join("old.log")).unwrap();
    assert!(log.contains("asked"), "SIGTERM comes before SIGKILL");
}

#[test]
fn daemon_that_restarts_itself_is_ended() {
    // At most two processes run at a time, and at most two hundred in total.
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
fn children_end_with_their_process_but_not_with_a_sibling() {
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
fn script_behind_a_shell_gets_its_grace_period() {
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
fn processes_end_with_a_killed_agent_outside_of_a_pod() {
    let mut agent = Agent::start_bound(
        "cd $ROUNDHOUSE_RUN_DIR; trap : TERM; echo $$ > new; mv new main; while :; do sleep 0.02; done",
    );
    let main = pid(&agent, "main");
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    until("its process ends", || (!runs(&main)).then_some(()));
}

#[test]
fn test_that_stops_early_leaves_no_process() {
    let agent = Agent::start_restarting(
        "cd $ROUNDHOUSE_RUN_DIR; trap '' TERM
        setsid bash -c 'echo $$ > new.far; mv new.far far; sleep 1000; true' &
        echo $$ > new; mv new main; while :; do sleep 0.02; done",
    );
    agent.join(1);
    let pids = [pid(&agent, "main"), pid(&agent, "far")];
    drop(agent);
    for pid in pids {
        assert!(!runs(&pid), "{pid}");
    }
}

#[test]
fn unstartable_program_is_explained_outside_of_a_pod() {
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
