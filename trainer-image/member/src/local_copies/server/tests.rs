use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::time::Instant;

use tempfile::TempDir;

use super::*;

const LIFE: &str = "0f3c-a1";
const LIMITS: Limits = Limits {
    max_bytes: None,
    max_connections: 8,
};
/// Half of a copy.
const HALF: [u8; 500] = [7; 500];

const fn id(step: u64) -> CheckpointId {
    CheckpointId {
        generation: 1,
        step,
    }
}

fn started(root: &TempDir) -> Server {
    let directory = Directory::new(root.path().to_owned());
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Server::start(any, LIFE.to_owned(), directory, LIMITS).unwrap()
}

/// Asks for room for a copy, and sends half of it.
fn begin_to_store(server: &Server, step: u64) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let operation = Operation::Store {
        shard: 0,
        id: id(step),
        kept: None,
        strays: Vec::new(),
        num_bytes: 2 * HALF.len() as u64,
    };
    let life = LIFE.to_owned();
    message::send(&mut stream, &Request { life, operation }).unwrap();
    stream.write_all(&HALF).unwrap();
    stream
}

#[test]
fn server_that_has_ended_leaves_the_volume_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let (server, directory) = (started(&root), Directory::new(root.path().to_owned()));
    let write = |path: &Path| std::fs::write(path, "copy");
    directory.complete(1, id(1), write).unwrap();
    let mut storing = begin_to_store(&server, 2);
    let partial = directory.path(0, id(2)).with_extension("partial");
    let deadline = Instant::now() + IDLE_TIMEOUT;
    while !partial.exists() {
        assert!(Instant::now() < deadline, "nothing is stored");
        std::thread::yield_now();
    }
    let mut deleting = TcpStream::connect(server.address()).unwrap();
    let begun = Instant::now();
    drop(server);
    assert!(begun.elapsed() < IDLE_TIMEOUT, "it waited for the sender");
    assert!(!partial.exists());
    // What comes later changes nothing.
    let _ = storing.write_all(&HALF);
    let operation = Operation::Delete {
        shard: 1,
        id: id(1),
    };
    let life = LIFE.to_owned();
    let _ = message::send(&mut deleting, &Request { life, operation });
    for mut stream in [storing, deleting] {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let contents = directory.contents().unwrap();
    assert_eq!(contents[&0].len(), 0);
    assert_eq!(contents[&1].len(), 1);
}

#[test]
fn port_is_free_once_the_server_has_ended() {
    let root = tempfile::tempdir().unwrap();
    let server = started(&root);
    let address = server.address();
    let _open = TcpStream::connect(address).unwrap();
    drop(server);
    let directory = Directory::new(root.path().to_owned());
    Server::start(address, LIFE.to_owned(), directory, LIMITS).unwrap();
}

#[test]
fn refusal_does_not_name_the_life() {
    let root = tempfile::tempdir().unwrap();
    let server = started(&root);
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let request = Request {
        life: "another".to_owned(),
        operation: Operation::List,
    };
    message::send(&mut stream, &request).unwrap();
    match message::receive(&mut stream).unwrap() {
        Answer::Refused(reason) => assert!(!reason.contains(LIFE), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn strangers_cannot_open_connections_without_limit() {
    let root = tempfile::tempdir().unwrap();
    let server = started(&root);
    let connect = || TcpStream::connect(server.address()).unwrap();
    let open: Vec<TcpStream> = (0..LIMITS.max_connections).map(|_| connect()).collect();
    let mut refused = connect();
    refused.set_read_timeout(Some(IDLE_TIMEOUT / 2)).unwrap();
    assert_eq!(refused.read(&mut [0]).unwrap(), 0, "the server closes it");
    drop(open);
}
