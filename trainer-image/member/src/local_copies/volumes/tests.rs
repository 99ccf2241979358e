use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::local_copies::server::{Limits, Server};

const LIFE: &str = "0-1-a";
/// Longer than one chunk of a transfer.
const NUM_BYTES: usize = (1 << 20) + 17;
/// Room for four copies.
const MAX_BYTES: u64 = 4 * NUM_BYTES as u64 + 100;

/// The volumes of two new pods.
const NOTHING: [Contents; 2] = [Contents::new(), Contents::new()];

const fn id(step: u64) -> CheckpointId {
    CheckpointId {
        generation: 1,
        step,
    }
}

/// Pods with one process each. Each holds the copies of the pod before it.
struct Pods {
    roots: Vec<TempDir>,
    servers: Vec<Option<Server>>,
    addresses: Vec<SocketAddr>,
}

impl Pods {
    fn new(num_pods: usize) -> Self {
        let roots: Vec<TempDir> = (0..num_pods)
            .map(|_| tempfile::tempdir().unwrap())
            .collect();
        let start = |root: &TempDir| {
            let directory = Directory::new(root.path().to_owned());
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let limits = Limits {
                max_bytes: Some(MAX_BYTES),
                max_connections: 16,
            };
            Server::start(any, LIFE.to_owned(), directory, limits).unwrap()
        };
        let servers: Vec<Server> = roots.iter().map(start).collect();
        Self {
            addresses: servers.iter().map(Server::address).collect(),
            servers: servers.into_iter().map(Some).collect(),
            roots,
        }
    }

    fn volumes(&self, pod: u32) -> Volumes {
        let num_pods = u32::try_from(self.roots.len()).unwrap();
        let holder = |pod: u32| Some((pod + 1) % num_pods);
        Volumes {
            directory: Directory::new(self.roots[pod as usize].path().to_owned()),
            siblings: peers(LIFE, &self.addresses),
            holder: None,
            placement: Placement {
                num_shards: num_pods,
                shards_per_pod: 1,
                holders: (0..num_pods).map(holder).collect(),
            },
            pod,
            shard: pod,
        }
    }

    /// Each process writes its part of a state and lets its holder have it.
    fn copy_all(&self, step: u64) {
        for pod in 0..u32::try_from(self.roots.len()).unwrap() {
            let volumes = self.volumes(pod);
            let contents = volumes.contents().unwrap();
            let kept = volumes.placement.kept(&contents);
            volumes.keep(kept).unwrap();
            let write = |path: &Path| std::fs::write(path, part(pod, step));
            volumes.put(id(step), write).unwrap();
            volumes.share(id(step), kept, &contents).unwrap();
        }
    }

    fn lose(&self, pod: u32) {
        std::fs::remove_dir_all(self.roots[pod as usize].path()).unwrap();
        std::fs::create_dir(self.roots[pod as usize].path()).unwrap();
    }
}

fn peers(life: &str, addresses: &[SocketAddr]) -> Vec<Peer> {
    let peer = |address: &SocketAddr| Peer {
        name: address.to_string(),
        life: life.to_owned(),
        address: *address,
        patience: Duration::from_secs(10),
        durable: Duration::from_secs(10),
    };
    addresses.iter().map(peer).collect()
}

fn part(pod: u32, step: u64) -> Vec<u8> {
    let byte = u8::try_from(u64::from(pod) * 16 + step).unwrap();
    vec![byte; NUM_BYTES]
}

#[test]
fn pod_that_is_lost_gets_its_part_from_its_holder() {
    for lost in 0..3 {
        let pods = Pods::new(3);
        pods.copy_all(1);
        pods.copy_all(2);
        pods.lose(lost);
        let volumes = pods.volumes(lost);
        let contents = volumes.contents().unwrap();
        assert_eq!(volumes.placement.newest_whole(&contents), Some(id(2)));
        let mut moved = 0;
        let from = volumes.obtain(id(2), &contents, &mut |bytes| moved += bytes);
        assert_eq!(from.unwrap(), Some((lost + 1) % 3));
        let path = volumes.directory.path(lost, id(2));
        assert_eq!(std::fs::read(path).unwrap(), part(lost, 2));
        assert_eq!(moved, NUM_BYTES as u64);
        let contents = volumes.contents().unwrap();
        let from = volumes.obtain(id(2), &contents, &mut |_| {});
        assert_eq!(from.unwrap(), None, "it has its part");
    }
}

#[test]
fn suspect_copies_are_deleted_in_both_pods() {
    let pods = Pods::new(3);
    pods.copy_all(1);
    pods.volumes(1).discard().unwrap();
    let contents = pods.volumes(0).contents().unwrap();
    let parts: Vec<Vec<u32>> = contents
        .iter()
        .map(|volume| {
            let left = volume.iter().filter(|(_, ids)| !ids.is_empty());
            left.map(|(shard, _)| *shard).collect()
        })
        .collect();
    assert_eq!(parts, [vec![0, 2], vec![0], vec![2]]);
}

#[test]
fn suspect_copies_are_deleted_in_each_pod_that_answers() {
    let mut pods = Pods::new(3);
    pods.copy_all(1);
    pods.servers[0] = None;
    pods.volumes(1).discard().unwrap_err();
    let left = |pod: u32| pods.volumes(pod).directory.path(1, id(1)).exists();
    assert!(!left(1) && !left(2), "its own pod and its holder");
}

#[test]
fn process_of_another_life_gets_and_leaves_nothing() {
    let pods = Pods::new(2);
    pods.copy_all(1);
    let mut volumes = pods.volumes(0);
    volumes.siblings = peers("0-2-b", &pods.addresses);
    assert!(matches!(volumes.contents(), Err(VolumesError::Other(_))));
    let write = |path: &Path| std::fs::write(path, part(0, 2));
    volumes.directory.complete(0, id(2), write).unwrap();
    volumes.share(id(2), None, &NOTHING).unwrap_err();
    let held = pods.volumes(1).directory.contents().unwrap();
    assert_eq!(held[&0], [id(1)].into(), "the copy before stays");
}

#[test]
fn transfer_that_is_cut_leaves_the_copy_before() {
    let pods = Pods::new(2);
    pods.copy_all(1);
    let mut stream = TcpStream::connect(pods.addresses[1]).unwrap();
    let request = format!(
        r#"{{"life":"{LIFE}","operation":{{"store":{{"shard":0,"id":{{"generation":1,"step":2}},"kept":{{"generation":1,"step":1}},"strays":[],"numBytes":100}}}}}}"#
    );
    let length = u32::try_from(request.len()).unwrap();
    stream.write_all(&length.to_le_bytes()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.write_all(&[0; 50]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    // The server answers once it has given the transfer up.
    let mut answer = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut answer).unwrap();
    let held = pods.volumes(1).directory.contents().unwrap();
    assert_eq!(held[&0], [id(1)].into());
}

#[test]
fn copy_for_which_there_is_no_room_is_refused() {
    let pods = Pods::new(2);
    let volumes = pods.volumes(0);
    let write = |path: &Path| std::fs::write(path, vec![0; NUM_BYTES]);
    volumes.put(id(1), write).unwrap();
    let directory = pods.volumes(1).directory;
    for shard in 2..6 {
        directory.complete(shard, id(1), write).unwrap();
    }
    volumes.share(id(1), None, &NOTHING).unwrap_err();
    assert!(!directory.path(0, id(1)).exists());
    // A copy that belongs elsewhere makes room for it.
    let stray = [Contents::new(), Contents::from([(2, [id(1)].into())])];
    volumes.share(id(1), None, &stray).unwrap();
    assert!(directory.path(0, id(1)).exists() && !directory.path(2, id(1)).exists());
}

/// A replica that was put together from two: its pod lacks the newest state, and has two others.
#[test]
fn fetched_copy_takes_the_place_of_an_older_one() {
    let pods = Pods::new(2);
    for step in [2, 3] {
        for shard in 0..2 {
            let write = |path: &Path| std::fs::write(path, part(shard, step));
            let directory = pods.volumes(0).directory;
            directory.complete(shard, id(step), write).unwrap();
        }
    }
    for shard in 0..2 {
        let write = |path: &Path| std::fs::write(path, part(shard, 5));
        pods.volumes(1)
            .directory
            .complete(shard, id(5), write)
            .unwrap();
    }
    let volumes = pods.volumes(0);
    let contents = volumes.contents().unwrap();
    assert_eq!(volumes.placement.newest_whole(&contents), Some(id(5)));
    volumes.obtain(id(5), &contents, &mut |_| {}).unwrap();
    let own = &volumes.directory.contents().unwrap()[&0];
    assert_eq!(*own, [id(3), id(5)].into());
}

#[test]
fn port_is_free_once_the_server_has_ended() {
    let mut pods = Pods::new(1);
    let address = pods.addresses[0];
    pods.servers.clear();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while let Err(error) = TcpListener::bind(address) {
        assert!(std::time::Instant::now() < deadline, "{error}");
    }
}
