//! A replica of several pods: the processes of each pod start when its place names another life.

use roundhouse_contract::{Incarnation, Reason, ReplicaPlace};
use tempfile::TempDir;

use crate::harness::{Agent, send, until};

/// Logs the life, this pod's place and the generation before. It trains, and ends with the code in
/// the file `end`, or with 143 once the file `leave` is there. With the file `part.<local rank>` it
/// reports that it saves its part, writes `saved.<local rank>` after 3 s, and ends with 75. With
/// the file `silent` it does so once its agent says that the life is over.
const SHARD: &str = r#"
    trap 'exit 143' TERM
    cd $ROUNDHOUSE_RUN_DIR
    status() { echo "$1" > new.$LOCAL_RANK; mv new.$LOCAL_RANK rank-$LOCAL_RANK.json; }
    [ -e untrained ] && generation=0 || generation=4
    status '{"phase":"Training","rank":'$LOCAL_RANK',"generation":'$generation',"step":17}'
    echo "run $$ $LOCAL_RANK $ROUNDHOUSE_REPLICA_LIFE $ROUNDHOUSE_REPLICA_POD" \
        "$ROUNDHOUSE_REPLICA_ADDRESSES $ROUNDHOUSE_REPLICA_HOLDERS ${ROUNDHOUSE_LAST_SEEN_GENERATION:-none}" >&2
    while :; do
        [ -e leave ] && exit 143
        [ -e silent ] && [ -e $(dirname $ROUNDHOUSE_REPLICA_FILE)/over ] && touch part.$LOCAL_RANK
        [ -e part.$LOCAL_RANK ] && {
            rm part.$LOCAL_RANK
            status '{"phase":"SavingPart","rank":'$LOCAL_RANK',"generation":4,"step":17}'
            # Longer than a process has that does not report it.
            sleep 3
            touch saved.$LOCAL_RANK
            exit 75
        }
        [ -e end.$LOCAL_RANK ] && { code=$(cat end.$LOCAL_RANK); rm end.$LOCAL_RANK; exit $code; }
        sleep 0.02
    done"#;

fn worker(procs: u32) -> Agent {
    worker_with(procs, TempDir::new().unwrap(), &[])
}

/// A worker whose processes keep copies of their state.
fn worker_with_copies(procs: u32) -> Agent {
    let dir = TempDir::new().unwrap();
    let volume = dir.path().display().to_string();
    let options = [
        "--checkpoint-dir",
        &volume,
        "--checkpoint-local-dir",
        &volume,
        "--checkpoint-local-every-steps",
        "10",
    ];
    worker_with(procs, dir, &options)
}

fn worker_with(procs: u32, dir: TempDir, more: &[&str]) -> Agent {
    let place = dir.path().join("replica");
    let options = [
        "--sharded",
        "--pods-per-replica",
        "2",
        "--replica-place-file",
    ];
    let own = ["--pod-ip", "10.0.0.2"];
    let options = [&options[..], &[place.to_str().unwrap()], &own, more].concat();
    let agent = Agent::start_with(dir, procs, SHARD, &options);
    agent.join(1);
    agent
}

/// Gives the pod its place in a life.
fn begins(agent: &Agent, life: &str) {
    let place = ReplicaPlace {
        replica: 5,
        pod: 1,
        addresses: vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()],
        holders: vec![Some(1), None],
        number: 3,
        life: life.to_owned(),
        incarnation: Incarnation {
            pod_uid: "u".to_owned(),
            restarts: 0,
        },
        issued_at: String::new(),
        repeats: 0,
    };
    let file = agent.dir.path().join("replica");
    std::fs::write(&file, place.to_json().unwrap()).unwrap();
}

/// The pid of a process of a life, and the generation that it must not join, once it runs.
fn process(agent: &Agent, local_rank: u32, life: &str) -> (String, String) {
    until("a process starts", || {
        let text = agent.stderr();
        let runs = text.lines().filter_map(|line| line.split_once("run "));
        let expected = format!(" {local_rank} {life} 1 10.0.0.1,10.0.0.2 1,- ");
        let run = runs
            .map(|(_, run)| run)
            .find(|run| run.contains(&expected))?;
        let (pid, former) = run.split_once(&expected)?;
        Some((pid.to_owned(), former.to_owned()))
    })
}

fn num_runs(agent: &Agent) -> usize {
    agent.stderr().matches(" 1 10.0.0.1,10.0.0.2 1,- ").count()
}

/// Waits until the agent reports that a life is over.
fn is_over(agent: &Agent, life: &str) {
    until("the end of the life is reported", || {
        (agent.restarts().ended_life == life).then_some(())
    });
    assert_eq!(agent.get("/readyz").0, 503);
}

#[test]
fn processes_start_with_a_life_and_end_for_the_next() {
    let mut agent = worker(2);
    until("the agent serves", || {
        (agent.get("/healthz").0 == 200).then_some(())
    });
    assert_eq!((agent.get("/readyz").0, num_runs(&agent)), (503, 0));
    begins(&agent, "a1");
    let first = [0, 1].map(|local| process(&agent, local, "a1"));
    assert_eq!(first[0].1, "none");
    until("it is ready", || {
        (agent.get("/readyz").0 == 200).then_some(())
    });

    begins(&agent, "a2");
    let second = [0, 1].map(|local| process(&agent, local, "a2"));
    assert_eq!(
        second[1].1, "4",
        "they join newer generations than the former"
    );
    assert_eq!(agent.restarts().total, 0, "no process failed");
    for (pid, _) in &first {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        assert!(stat.is_err(), "a process of the life before runs");
    }
    // A life of a former container, or a document that arrives late.
    begins(&agent, "a1");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(num_runs(&agent), 4);

    agent.signal("TERM");
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(143), Reason::Left));
}

#[test]
fn failed_process_ends_the_life_in_this_pod() {
    let mut agent = worker(2);
    begins(&agent, "a1");
    let (pid, _) = process(&agent, 1, "a1");
    process(&agent, 0, "a1");
    send("KILL", &pid);
    is_over(&agent, "a1");
    let record = agent.restarts();
    assert_eq!((record.total, record.without_state), (1, false));
    let end = record.last.unwrap();
    assert_eq!(
        (end.local_rank, end.exit_code, end.message.generation),
        (1, 137, 4)
    );
    assert_eq!(num_runs(&agent), 2, "the others are not there yet");
    begins(&agent, "a2");
    process(&agent, 0, "a2");
    until("it is ready again", || {
        (agent.get("/readyz").0 == 200).then_some(())
    });
    assert_eq!(agent.restarts().ended_life, "");
    agent.signal("TERM");
    agent.finish();
}

#[test]
fn process_that_lost_a_sibling_has_time_to_save_its_state() {
    let mut agent = worker_with_copies(2);
    begins(&agent, "a1");
    let (pid, _) = process(&agent, 0, "a1");
    process(&agent, 1, "a1");
    agent.touch("part.1");
    until("it saves its part", || {
        let status = std::fs::read_to_string(agent.run_dir().join("rank-1.json"));
        status.unwrap().contains("SavingPart").then_some(())
    });
    send("KILL", &pid);
    is_over(&agent, "a1");
    assert!(agent.run_dir().join("saved.1").exists());
    let record = agent.restarts();
    let end = record.last.unwrap();
    assert_eq!((record.total, end.local_rank, end.exit_code), (1, 0, 137));
    agent.signal("TERM");
    agent.finish();
}

#[test]
fn another_life_gives_processes_time_to_save_their_state() {
    let mut agent = worker_with_copies(2);
    begins(&agent, "a1");
    // The second process notices nothing, and is killed.
    process(&agent, 0, "a1");
    let (pid, _) = process(&agent, 1, "a1");
    agent.touch("part.0");
    begins(&agent, "a2");
    process(&agent, 0, "a2");
    process(&agent, 1, "a2");
    assert!(agent.run_dir().join("saved.0").exists());
    assert!(std::fs::read_to_string(format!("/proc/{pid}/stat")).is_err());
    assert_eq!(agent.restarts().total, 0, "no process failed");
    agent.signal("TERM");
    agent.finish();
}

/// Another pod does not answer, and a spare takes its place.
#[test]
fn process_that_waits_for_a_silent_pod_saves_its_part() {
    let mut agent = worker_with_copies(2);
    agent.touch("silent");
    begins(&agent, "a1");
    process(&agent, 0, "a1");
    process(&agent, 1, "a1");
    begins(&agent, "a2");
    let saved = |local: u32| agent.run_dir().join(format!("saved.{local}")).exists();
    until("the parts are saved", || {
        (saved(0) && saved(1)).then_some(())
    });
    process(&agent, 1, "a2");
    assert_eq!(agent.restarts().total, 0, "no process failed");
    agent.signal("TERM");
    agent.finish();
}

/// c10d aborts a process whose NCCL loses a peer.
#[test]
fn process_that_aborts_for_another_life_is_not_counted() {
    let mut agent = worker_with_copies(1);
    begins(&agent, "a1");
    let (pid, _) = process(&agent, 0, "a1");
    begins(&agent, "a2");
    until("the agent knows the next life", || {
        let words = "the replica has another life";
        agent.stderr().contains(words).then_some(())
    });
    send("ABRT", &pid);
    process(&agent, 0, "a2");
    assert_eq!(agent.restarts().total, 0, "{}", agent.stderr());
    agent.signal("TERM");
    agent.finish();
}

#[test]
fn end_of_a_process_in_another_pod_is_not_counted() {
    let mut agent = worker(1);
    for life in ["a1", "a2", "a3", "a4", "a5"] {
        begins(&agent, life);
        process(&agent, 0, life);
        std::fs::write(agent.run_dir().join("end.0"), "75").unwrap();
        is_over(&agent, life);
        let record = agent.restarts();
        assert_eq!((record.total, record.last.unwrap().exit_code), (0, 75));
    }
    agent.signal("TERM");
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(143), Reason::Left));
}

#[test]
fn processes_that_leave_a_generation_wait_for_another_life() {
    let mut agent = worker(2);
    begins(&agent, "a1");
    process(&agent, 0, "a1");
    process(&agent, 1, "a1");
    agent.touch("leave");
    is_over(&agent, "a1");
    std::fs::remove_file(agent.run_dir().join("leave")).unwrap();
    begins(&agent, "a2");
    process(&agent, 1, "a2");
    agent.signal("TERM");
    agent.finish();
}

#[test]
fn process_that_fails_before_it_trained_ends_the_container() {
    let mut agent = worker(1);
    agent.touch("untrained");
    begins(&agent, "a1");
    process(&agent, 0, "a1");
    // One that lost another pod has not failed.
    std::fs::write(agent.run_dir().join("end.0"), "75").unwrap();
    is_over(&agent, "a1");
    begins(&agent, "a2");
    process(&agent, 0, "a2");
    std::fs::write(agent.run_dir().join("end.0"), "1").unwrap();
    let (status, message) = agent.finish();
    assert_eq!((status.code(), message.reason), (Some(1), Reason::Crashed));
}
