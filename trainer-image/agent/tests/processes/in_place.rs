//! A worker of two processes, one of which dies and is restarted in place.

use roundhouse_contract::{ProcessRestarts, Reason};
use tempfile::TempDir;

use crate::harness::{Agent, send, until};

/// Each run of a process writes its own status once, and logs its pid, the generation before it and
/// the number of the run. Local rank 0 trains in generation 4. Local rank 1 does so in its first
/// run; in the second run it prepares until a file lets it into the lobby.
const TRAINER: &str = r#"
    cd $ROUNDHOUSE_RUN_DIR
    life=$(( $(cat lives.$LOCAL_RANK 2>/dev/null || echo 0) + 1 )); echo $life > lives.$LOCAL_RANK
    status() { echo "$1" > new.$LOCAL_RANK; mv new.$LOCAL_RANK rank-$LOCAL_RANK.json; }
    training='{"phase":"Training","rank":'$(( 6 + LOCAL_RANK ))',"generation":4,"step":17}'
    if [ $LOCAL_RANK = 0 ] || [ $life = 1 ]; then status "$training"; fi
    echo "pid $$ of $LOCAL_RANK in life $life after ${ROUNDHOUSE_LAST_SEEN_GENERATION:-none}" >&2
    while [ $life -gt 1 ] && [ ! -e prepared ]; do sleep 0.02; done
    if [ $life -gt 1 ]; then status '{"phase":"Lobby","generation":0,"step":0}'; fi
    while [ ! -e finish ]; do sleep 0.02; done
    exit 0"#;

fn worker(script: &str) -> Agent {
    let agent = Agent::start_with(TempDir::new().unwrap(), 2, script, &[]);
    agent.join(1);
    agent
}

/// Returns the pid of a process in one of its runs, once the log has it, and
/// the generation before it.
fn life(agent: &Agent, local_rank: u32, number: u32) -> (String, String) {
    let words = format!("of {local_rank} in life {number} after ");
    until("a process logs its pid", || {
        let text = agent.stderr();
        let line = text.lines().find(|line| line.contains(&words))?;
        let pid = line.split("pid ").nth(1)?.split(' ').next()?;
        let former = line.rsplit(' ').next()?;
        Some((pid.to_owned(), former.to_owned()))
    })
}

#[test]
fn dead_process_is_restarted_beside_its_sibling() {
    let mut agent = worker(TRAINER);
    let (sibling, first) = life(&agent, 0, 1);
    let (victim, _) = life(&agent, 1, 1);
    assert_eq!(first, "none", "the first process of a container");
    assert_eq!(agent.get("/readyz").0, 200);
    let ready = ProcessRestarts {
        ready: true,
        ..ProcessRestarts::default()
    };
    assert_eq!(agent.restarts(), ready);

    send("KILL", &victim);
    let (successor, former) = life(&agent, 1, 2);
    assert_ne!(successor, victim);
    assert_eq!(former, "4", "the generation that broke");
    let record = agent.restarts();
    assert_eq!((record.total, record.preparing), (1, vec![1]));
    let end = record.last.unwrap();
    assert_eq!((end.local_rank, end.exit_code), (1, 137));
    let words = end.message;
    assert_eq!(
        (words.reason, words.rank, words.generation, words.step),
        (Reason::Killed, Some(7), 4, 17)
    );
    let (code, text) = agent.get("/readyz");
    assert_eq!(code, 503);
    assert!(text.contains("[1] of 2"), "{text}");

    agent.touch("prepared");
    until("the worker is ready again", || {
        (agent.get("/readyz").0 == 200).then_some(())
    });
    assert!(agent.restarts().preparing.is_empty());
    let (_, metrics) = agent.get("/metrics");
    let count = "roundhouse_agent_process_restarts_total 1\n";
    assert!(metrics.contains(count), "{metrics}");

    agent.touch("finish");
    let (status, message) = agent.finish();
    assert_eq!(
        (status.code(), message.reason),
        (Some(0), Reason::Completed)
    );
    let log = agent.stderr();
    assert_eq!(log.matches(&format!("pid {sibling} ")).count(), 1);
    assert!(!log.contains("of 0 in life 2"), "{log}");
    assert!(log.contains("[rank 7] pid"), "{log}");
}

#[test]
fn leaving_worker_restarts_no_process() {
    let trap = "trap '[ $LOCAL_RANK = 1 ] && kill -9 $$; exit 143' TERM";
    let mut agent = worker(&format!("{trap}; {TRAINER}"));
    life(&agent, 0, 1);
    life(&agent, 1, 1);
    agent.signal("TERM");
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(143), Reason::Left));
    assert!(!agent.stderr().contains("in life 2"));
}

#[test]
fn permanent_exit_code_ends_a_worker_that_trains() {
    let script = TRAINER.replace("exit 0", "[ $LOCAL_RANK = 1 ] && exit 65; sleep 1000");
    let mut agent = worker(&script);
    life(&agent, 0, 1);
    life(&agent, 1, 1);
    agent.touch("finish");
    let (status, message) = agent.finish();
    assert_eq!(
        (status.code(), message.reason),
        (Some(65), Reason::DataInvalid)
    );
    assert!(!agent.stderr().contains("in life 2"));
}

#[test]
fn repeated_deaths_without_a_step_end_the_worker() {
    let script = TRAINER.replace(
        "while [ $life -gt 1 ] && [ ! -e prepared ]",
        "[ $life -gt 1 ] && { echo life $life is over >&2; exit 9; }; while false",
    );
    let mut agent = worker(&script);
    life(&agent, 0, 1);
    let (victim, _) = life(&agent, 1, 1);
    send("KILL", &victim);
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(9), Reason::Crashed));
    let words = message.message;
    assert!(words.contains("3 times without a new step"), "{words}");
    assert!(words.contains("life 4 is over"), "{words}");
    assert!(!agent.stderr().contains("in life 5"));
}

#[test]
fn death_without_a_trained_sibling_ends_the_worker() {
    let script = TRAINER.replace("\"generation\":4", "\"generation\":0");
    let mut agent = worker(&script);
    life(&agent, 0, 1);
    let (victim, _) = life(&agent, 1, 1);
    send("KILL", &victim);
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(137), Reason::Killed));
    assert!(!agent.stderr().contains("in life 2"));
}
