//! A sharded worker: its processes hold one copy of the state, so they end and restart together.

use std::collections::BTreeSet;
use std::path::Path;

use roundhouse_contract::{ProcessRestarts, Reason};
use tempfile::TempDir;

use crate::harness::{Agent, send, until};

/// Each run of a process logs its pid, the generation before it and the file of its replica. In its
/// first run it trains, and local rank 2 forms a newer generation than the others. In later runs it
/// prepares until a file lets it into the lobby, and waits there until another file lets it into a
/// generation. It ignores SIGTERM, and has a child.
const SHARD: &str = r#"
    trap '' TERM
    cd $ROUNDHOUSE_RUN_DIR
    life=$(( $(cat lives.$LOCAL_RANK 2>/dev/null || echo 0) + 1 )); echo $life > lives.$LOCAL_RANK
    status() { echo "$1" > new.$LOCAL_RANK; mv new.$LOCAL_RANK rank-$LOCAL_RANK.json; }
    setsid sleep 1000 &
    forming=$(( LOCAL_RANK == 2 ? 5 : 4 ))
    if [ $life = 1 ]; then
        status '{"phase":"Training","rank":'$(( 6 + LOCAL_RANK ))',"generation":4,"forming":'$forming',"step":17}'
    else
        status '{"phase":"Preparing","generation":0,"step":0}'
    fi
    touch "$ROUNDHOUSE_REPLICA_FILE"
    echo "run $$ $! $LOCAL_RANK $life ${ROUNDHOUSE_LAST_SEEN_GENERATION:-none} $ROUNDHOUSE_REPLICA_FILE" \
        "$ROUNDHOUSE_SHARDED" >&2
    while [ $life -gt 1 ] && [ ! -e prepared.$LOCAL_RANK ]; do sleep 0.02; done
    if [ $life -gt 1 ]; then
        status '{"phase":"Lobby","generation":0,"step":0}'
        while [ ! -e formed ] && [ ! -e finish ]; do sleep 0.02; done
        status '{"phase":"Training","generation":6,"step":17}'
    fi
    while [ ! -e finish ]; do sleep 0.02; done
    status '{"phase":"Done","generation":6,"step":20}'
    exit 0"#;

fn worker(script: &str) -> Agent {
    let agent = Agent::start_sharded(TempDir::new().unwrap(), 3, script);
    agent.join(1);
    agent
}

/// What a process logs when it starts.
#[derive(Debug)]
struct Run {
    pid: String,
    child: String,
    former: String,
    replica_file: String,
}

/// The runs of all three processes in one life of the replica, once the log has them.
fn life(agent: &Agent, number: u32) -> [Run; 3] {
    [0, 1, 2].map(|local_rank| {
        let end = format!(" {local_rank} {number} ");
        until("a process logs its pid", || {
            let text = agent.stderr();
            let runs = text.lines().filter_map(|line| line.split_once("run "));
            let (_, run) = runs.into_iter().find(|(_, run)| run.contains(&end))?;
            let words: Vec<&str> = run.split(' ').collect();
            let [pid, child, _, _, former, replica_file, "true"] = words[..] else {
                return None;
            };
            Some(Run {
                pid: pid.to_owned(),
                child: child.to_owned(),
                former: former.to_owned(),
                replica_file: replica_file.to_owned(),
            })
        })
    })
}

fn replica_file(runs: &[Run; 3]) -> &str {
    let files: BTreeSet<&str> = runs.iter().map(|run| &*run.replica_file).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    &runs[0].replica_file
}

fn is_gone(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    // A zombie has no resources; its parent has not collected it yet.
    stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
}

#[test]
fn death_of_one_process_restarts_the_whole_replica() {
    let mut agent = worker(SHARD);
    let first = life(&agent, 1);
    assert_eq!(agent.get("/readyz").0, 200);
    let ready = ProcessRestarts {
        ready: true,
        ..ProcessRestarts::default()
    };
    assert_eq!(agent.restarts(), ready);

    send("KILL", &first[1].pid);
    let record = until("the end is reported", || {
        Some(agent.restarts()).filter(|record| record.total > 0)
    });
    assert_eq!((record.total, record.preparing), (1, vec![0, 1, 2]));
    assert!(record.without_state);
    let end = record.last.unwrap();
    assert_eq!((end.local_rank, end.exit_code), (1, 137));
    let words = end.message;
    assert_eq!(
        (words.reason, words.rank, words.generation, words.step),
        (Reason::Killed, Some(7), 5, 17),
        "the newest generation of the replica"
    );
    assert_eq!(agent.get("/readyz").0, 503);

    let second = life(&agent, 2);
    for run in &first {
        assert!(is_gone(&run.pid) && is_gone(&run.child), "{run:?}");
        assert_eq!(run.former, "none");
    }
    for run in &second {
        assert_eq!(run.former, "5", "all join the same generations");
    }
    assert_ne!(replica_file(&first), replica_file(&second));
    assert_eq!(agent.restarts().total, 1);

    for (prepared, waiting) in [(0, vec![1, 2]), (1, vec![2]), (2, vec![])] {
        agent.touch(&format!("prepared.{prepared}"));
        until("a process is in the lobby", || {
            let found = agent.restarts();
            assert!(found.without_state);
            (found.preparing == waiting).then_some(())
        });
        // The operator would believe that a Ready worker still trains.
        assert_eq!(agent.get("/readyz").0, 503);
    }
    agent.touch("formed");
    until("the worker is ready again", || {
        (agent.get("/readyz").0 == 200).then_some(())
    });
    assert!(!agent.restarts().without_state);
    let (_, metrics) = agent.get("/metrics");
    let count = "roundhouse_agent_process_restarts_total 1\n";
    assert!(metrics.contains(count), "{metrics}");

    agent.touch("finish");
    let (status, message) = agent.finish();
    assert_eq!(
        (status.code(), message.reason),
        (Some(0), Reason::Completed)
    );
    assert!(!agent.stderr().contains("ignore SIGTERM"));
}

#[test]
fn completed_process_leaves_its_siblings_alone() {
    let done = r#"status '{"phase":"Done","generation":6,"step":20}'"#;
    let early = format!("[ $LOCAL_RANK = 0 ] && {{ {done}; exit 0; }}\nwhile [ $life -gt 1 ]");
    let mut agent = worker(&SHARD.replacen("while [ $life -gt 1 ]", &early, 1));
    let runs = life(&agent, 1);
    until("the agent collects the first process", || {
        let (_, metrics) = agent.get("/metrics");
        metrics
            .contains("process_up{local_rank=\"0\"} 0\n")
            .then_some(())
    });
    assert!(is_gone(&runs[0].pid));
    assert!(!is_gone(&runs[1].pid) && !is_gone(&runs[2].pid));
    agent.touch("finish");
    let (status, message) = agent.finish();
    assert_eq!(
        (status.code(), message.reason),
        (Some(0), Reason::Completed)
    );
    assert!(!agent.stderr().contains("SIGKILL"));
}

#[test]
fn permanent_exit_code_ends_the_sharded_worker() {
    let script = SHARD.replace("exit 0", "[ $LOCAL_RANK = 1 ] && exit 65; sleep 1000");
    let mut agent = worker(&script);
    let runs = life(&agent, 1);
    agent.touch("finish");
    let (status, message) = agent.finish();
    assert_eq!(
        (status.code(), message.reason),
        (Some(65), Reason::DataInvalid)
    );
    assert!(runs.iter().all(|run| is_gone(&run.pid)));
    let log = agent.stderr();
    assert!(
        !log.contains(" 1 2 ") && !log.contains("ignore SIGTERM"),
        "{log}"
    );
}

#[test]
fn sharded_worker_that_never_trained_ends() {
    let script = SHARD.replace(
        r#""generation":4,"forming":'$forming'"#,
        r#""generation":0"#,
    );
    let mut agent = worker(&script);
    let runs = life(&agent, 1);
    send("KILL", &runs[2].pid);
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(137), Reason::Killed));
}

#[test]
fn repeated_ends_of_a_replica_end_the_worker() {
    let script = SHARD.replace(
        "while [ $life -gt 1 ]",
        "[ $life -gt 1 ] && [ $LOCAL_RANK = 1 ] && { echo life $life is over >&2; exit 9; }\n\
         while [ $life -gt 1 ]",
    );
    let mut agent = worker(&script);
    let runs = life(&agent, 1);
    send("KILL", &runs[0].pid);
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(9), Reason::Crashed));
    let words = message.message;
    assert!(words.contains("3 times without a new step"), "{words}");
    assert!(words.contains("life 4 is over"), "{words}");
    assert_eq!(restarts_in(&agent), 3);
}

/// Number of restarts in the log, each of all processes.
fn restarts_in(agent: &Agent) -> usize {
    agent.stderr().matches("restarting all 3").count()
}

#[test]
fn leaving_sharded_worker_restarts_no_process() {
    let trap = "trap '[ $LOCAL_RANK = 1 ] && kill -9 $$; exit 143' TERM";
    let mut agent = worker(&SHARD.replace("trap '' TERM", trap));
    life(&agent, 1);
    agent.signal("TERM");
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(143), Reason::Left));
    assert_eq!(restarts_in(&agent), 0);
}

#[test]
fn restarted_container_gets_another_replica_file() {
    let mut first = worker(SHARD);
    let before = life(&first, 1);
    first.touch("finish");
    first.finish();
    // The run directory survives the container.
    let dir = TempDir::new().unwrap();
    let run_dir = dir.path().join("run");
    std::fs::rename(first.run_dir(), &run_dir).unwrap();
    for left in ["finish", "lives.0", "lives.1", "lives.2"] {
        std::fs::remove_file(run_dir.join(left)).unwrap();
    }
    let mut second = Agent::start_sharded(dir, 3, SHARD);
    let after = life(&second, 1);
    let name = |runs| {
        Path::new(replica_file(runs))
            .parent()
            .unwrap()
            .file_name()
            .unwrap()
            .to_owned()
    };
    assert_ne!(name(&before), name(&after));
    second.touch("finish");
    second.finish();
}
