//! Idle and slow clients of the HTTP server.

use std::io::Write;
use std::net::TcpStream;

use roundhouse_contract::{Reason, TraceRequest, paths};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::harness::{Agent, until};

const NUM_IDLE: usize = 2_000;

/// This process holds the clients' ends of the connections.
fn allow_open_files(wanted: u64) {
    let limit = getrlimit(Resource::Nofile);
    let enough = limit.current.is_none_or(|current| current >= wanted);
    if !enough {
        let raised = Rlimit {
            current: Some(wanted),
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, raised).unwrap();
    }
}

#[test]
fn idle_connections_delay_neither_probes_nor_supervision() {
    allow_open_files(NUM_IDLE as u64 + 500);
    let script = "while [ ! -e $ROUNDHOUSE_RUN_DIR/go ]; do sleep 0.05; done; exit 65";
    let mut agent = Agent::start(1, script);
    let mut idle = Vec::new();
    for number in 0..NUM_IDLE {
        let mut stream = TcpStream::connect(&agent.address).unwrap();
        if number % 2 == 0 {
            // Half of the clients begin a request and never end it.
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n");
        }
        idle.push(stream);
    }
    for _ in 0..20 {
        assert_eq!(agent.get("/readyz").0, 503);
        assert_eq!(agent.get("/healthz").0, 200);
    }
    agent.touch("go");
    let (status, message) = agent.finish();
    assert_eq!(
        (status.code(), message.reason),
        (Some(65), Reason::DataInvalid)
    );
    drop(idle);
}

#[test]
fn connection_serves_one_request() {
    let agent = Agent::start(1, "exec sleep 1000");
    let mut stream = TcpStream::connect(&agent.address).unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    // The server ends the stream although the request has no `Connection: close`.
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.ends_with("ok\n"), "{answer}");
    until("the server still answers", || {
        (agent.get("/healthz").0 == 200).then_some(())
    });
}

#[test]
fn agent_removes_its_trace_when_it_ends() {
    let mut agent = Agent::start(1, "exec sleep 1000");
    agent.join(1);
    assert_eq!(agent.get_as_reader("/trace").0, 404);
    assert_eq!(agent.get_as_reader("/trace?steps=5").0, 202);
    assert_eq!(agent.get_as_reader("/trace").0, 503);
    let path = paths::rank_trace_request(&agent.run_dir(), 0);
    let text = std::fs::read_to_string(&path).unwrap();
    let TraceRequest { num_steps, result } = serde_json::from_str(&text).unwrap();
    assert_eq!(num_steps, 5);
    assert!(
        !result.starts_with(agent.run_dir()),
        "the run directory is memory"
    );
    std::fs::write(&result, "{}").unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(agent.get_as_reader("/trace"), (200, "{}".to_owned()));
    assert_eq!(agent.get_as_reader("/trace?steps=5").0, 429);
    agent.signal("TERM");
    agent.finish();
    assert!(!result.exists());
}

#[test]
fn other_routes_are_for_readers_of_the_job() {
    let agent = Agent::start(1, "exec sleep 1000");
    let private = ["/restarts", "/ledger", "/trace", "/trace?steps=5"];
    for path in private {
        assert_eq!(agent.get_as_reader(path).0, 403, "no generation: {path}");
    }
    agent.join(1);
    for path in private {
        let (code, words) = agent.get(path);
        assert_eq!(code, 403, "{path}");
        assert!(words.contains(".status.membership.nonce"), "{words}");
        assert_ne!(agent.get_as_reader(path).0, 403, "{path}");
    }
    for path in ["/healthz", "/metrics", "/progress"] {
        assert_ne!(agent.get(path).0, 403, "{path}");
    }
    let asked = paths::rank_trace_request(&agent.run_dir(), 0);
    assert!(asked.exists(), "by the reader");
}
