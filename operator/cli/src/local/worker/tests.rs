use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use roundhouse_contract::{Incarnation, Master, environment, paths};
use roundhouse_planner::{Program, Script, ValidatedJob};
use serde_json::json;

use super::retry::RETRY;
use super::*;

const GRACE: Duration = Duration::from_secs(600);
const DEADLINE: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(20);

#[test]
fn leaving_worker_has_a_deadline() {
    let mut worker = Worker::idle("digits-worker-0-0".to_owned(), (0, 0), 1, GRACE);
    assert_eq!(worker.observed().gone_by, None);
    let before = Timestamp::now();
    worker.delete();
    let gone_by = worker.observed().gone_by.unwrap();
    assert!(gone_by >= before + GRACE && gone_by <= Timestamp::now() + GRACE);
    worker.delete();
    assert_eq!(worker.observed().gone_by, Some(gone_by), "once");
    worker.kill();
    assert!(worker.observed().gone_by.unwrap() <= Timestamp::now());
}

#[test]
fn worker_with_leave_membership_leads_no_generation() {
    let mut worker = Worker::idle("digits-worker-0-0".to_owned(), (0, 0), 1, GRACE);
    worker.membership = Some(document(Action::Join));
    assert_eq!(worker.leads(), Some(3));
    worker.membership = Some(document(Action::Leave));
    assert_eq!(worker.leads(), None);
}

/// `launch::environment` builds the same variables for the operator's pods.
#[test]
fn agent_environment_has_all_variables_of_the_job() {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(directory.path());
    let worker = Worker::idle("w".to_owned(), (3, 0), 1, GRACE);
    let command = launch::command(&plan, &worker, &worker.dir(&plan));
    let variable = |name: &str| {
        let mut all = command.get_envs();
        let (_, value) = all.find(|(known, _)| *known == name)?;
        Some(value?.to_str().unwrap().to_owned())
    };
    let state = directory.path().join("state").display().to_string();
    for (name, value) in [
        (environment::CHECKPOINT_BEST, Some("top1")),
        (environment::CHECKPOINT_KEEP, Some("3")),
        (environment::CHECKPOINT_DIR, Some(&*state)),
        (environment::STALL_TIMEOUT_SECONDS, Some("60")),
        (environment::TERMINATION_GRACE_SECONDS, Some("600")),
        (environment::JOB_NAME, Some("digits")),
        (environment::JOB_UID, Some("local-1")),
        (environment::WORKER_INDEX, Some("3")),
        (environment::MODE, None),
        (environment::EXPECTED_DEVICE, None),
    ] {
        assert_eq!(variable(name).as_deref(), value, "{name}");
    }
}

/// An agent that replaces its process when it gets SIGUSR1.
const REPLACES_PROCESS: &str = "#!/bin/sh
trap 'kill -9 $!; wait $!; sleep 600 & wait $!' USR1
sleep 600 &
wait $!
";

#[tokio::test]
async fn processes_of_each_generation_are_printed_once() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("logs")).unwrap();
    let mut plan = plan(directory.path());
    let built_in = plan.job.program.clone();
    std::fs::write(&plan.agent, REPLACES_PROCESS).unwrap();
    plan.job.program = Program::Script(Script {
        command: Vec::new(),
        peer_failure_window: SOON,
        leave_grace: SOON,
    });
    let mut worker = Worker::start(&plan, "w".to_owned(), (0, 0), 1).unwrap();
    assert_eq!(worker.new_processes(&plan), None, "no membership");
    let mut printed = Vec::new();
    for is_first in [true, false] {
        worker.issue(&plan, document(Action::Join), &[]);
        if !is_first {
            assert_eq!(worker.new_processes(&plan), None, "those of the former one");
            worker.signal(Signal::USR1);
        }
        until(|| {
            let new = worker.new_processes(&plan);
            let is_there = new.is_some();
            printed.extend(new.into_iter().flatten());
            is_there
        })
        .await;
        assert_eq!(worker.new_processes(&plan), None, "once");
    }
    plan.job.program = built_in;
    worker.issue(&plan, document(Action::Join), &[]);
    assert_eq!(worker.new_processes(&plan), None, "they are still the same");
    worker.kill();
    until(|| worker.collect().unwrap()).await;
    assert!(
        printed.len() == 2 && printed[0] != printed[1],
        "{printed:?}"
    );
    let last = Pid::from_raw(printed[1].cast_signed()).unwrap();
    kill_process(last, Signal::KILL).unwrap();
}

#[tokio::test]
async fn failed_write_is_reported_once_and_retried() {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(directory.path());
    // Without the log directory even root cannot create a file in it.
    let start = |number| Worker::start(&plan, "w".to_owned(), (0, 0), number);
    assert!(start(1).is_err(), "a run that cannot begin fails");
    let mut worker = start(2).unwrap();
    std::fs::remove_dir_all(plan.workers.join("w")).unwrap();
    worker.issue(&plan, document(Action::Join), &[]);
    assert!(worker.supervise(&plan));
    let message = worker.new_problem().unwrap();
    assert!(message.starts_with("w: cannot write "), "{message}");
    std::thread::sleep(RETRY);
    assert!(worker.supervise(&plan) && worker.pid().is_none());
    assert_eq!(worker.new_problem(), None, "once");
    std::fs::create_dir(directory.path().join("logs")).unwrap();
    until(|| worker.supervise(&plan) && worker.pid().is_some()).await;
    let text = std::fs::read_to_string(plan.workers.join("w").join(paths::MEMBERSHIP_FILE));
    assert!(Membership::parse(&text.unwrap()).is_ok());
    assert_eq!(worker.observed().container.restarts, 0);
    worker.kill();
    until(|| worker.collect().unwrap()).await;
}

#[tokio::test]
async fn stopped_worker_is_ready_when_its_agent_answers() {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(directory.path());
    std::fs::create_dir(directory.path().join("logs")).unwrap();
    let mut worker = Worker::start(&plan, "w".to_owned(), (0, 0), 1).unwrap();
    let run_dir = plan.workers.join("w/run");
    let status = r#"{"phase":"Training","rank":0,"generation":1,"step":9}"#;
    std::fs::write(paths::rank_status(&run_dir, 0), status).unwrap();
    // The listener accepts no connection, like a stopped process.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::fs::write(paths::agent_address(&run_dir), address).unwrap();
    worker.probe = Some(Probe::with(&run_dir, SOON, SOON));
    worker.supervise(&plan);
    assert!(worker.observed().ready);
    until(|| worker.supervise(&plan) && worker.observed().unreachable).await;
    assert!(!worker.observed().ready);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = std::io::Write::write_all(&mut stream.unwrap(), b"HTTP/1.1 200 OK\r\n\r\n");
        }
    });
    until(|| worker.supervise(&plan) && worker.observed().ready).await;
    worker.kill();
    until(|| worker.collect().unwrap()).await;
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < DEADLINE, "not in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A launch plan whose agent only sleeps.
fn plan(directory: &Path) -> LaunchPlan {
    let agent = directory.join("agent");
    std::fs::write(&agent, "#!/bin/sh\nexec sleep 600\n").unwrap();
    std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755)).unwrap();
    LaunchPlan {
        agent,
        program: vec!["program".to_owned()],
        dir: directory.to_owned(),
        workers: directory.join("workers"),
        data_dir: directory.to_owned(),
        job: job(),
        variables: Vec::new(),
    }
}

fn job() -> ValidatedJob {
    let job = json!({
        "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "digits", "namespace": "ml", "uid": "local-1"},
        "spec": {
            "workers": {
                "replicas": 1,
                "template": {"spec": {"terminationGracePeriodSeconds": GRACE.as_secs()}},
            },
            "trainer": {
                "model": {"name": "mlp"}, "data": {"format": "idx"}, "globalBatchSize": 10, "epochs": 1,
            },
            "checkpoint": {"volume": {"hostPath": {"path": "/x"}}, "best": {"metric": "top1"}},
            "stallTimeoutSeconds": 60,
        },
    });
    roundhouse_planner::validate(&serde_json::from_value(job).unwrap()).unwrap()
}

fn document(action: Action) -> Membership {
    Membership {
        life: String::new(),
        nonce: String::new(),
        generation: 3,
        action,
        node_rank: 0,
        nodes: 1,
        procs_per_worker: 1,
        master: Master {
            address: String::new(),
            port: 1,
        },
        members: String::new(),
        incarnation: Incarnation {
            pod_uid: String::new(),
            restarts: 0,
        },
        issued_at: String::new(),
        repeats: 0,
    }
}
