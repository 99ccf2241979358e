use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use tempfile::TempDir;

use super::*;
use crate::local_copies::server::Server;

const LIFE: &str = "0-1-a";
/// Longer than one chunk of a transfer.
const NUM_BYTES: usize = (1 << 20) + 17;

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
            Server::start(any, LIFE.to_owned(), directory, Some(1 << 21)).unwrap()
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
            siblings: Some(Siblings::at(LIFE.to_owned(), self.addresses.clone())),
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
            let kept = volumes.placement.kept(&volumes.contents().unwrap());
            volumes.directory.keep(pod, kept).unwrap();
            let write = |path: &Path| std::fs::write(path, part(pod, step));
            volumes.directory.complete(pod, id(step), write).unwrap();
            let places = volumes.placement.pods_of(pod);
            volumes.share(id(step), kept, places).unwrap();
        }
    }

    fn lose(&self, pod: u32) {
        std::fs::remove_dir_all(self.roots[pod as usize].path()).unwrap();
        std::fs::create_dir(self.roots[pod as usize].path()).unwrap();
    }
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
fn two_states_of_each_part_stay() {
    let pods = Pods::new(3);
    for step in 1..5 {
        pods.copy_all(step);
        for volume in pods.volumes(0).contents().unwrap() {
            let most = volume.values().map(std::collections::BTreeSet::len).max();
            assert!(volume.len() == 2 && most <= Some(2), "{volume:?}");
        }
    }
}

#[test]
fn suspect_copies_are_deleted_in_both_pods() {
    let mut pods = Pods::new(3);
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
    // Another pod is gone.
    pods.servers[0] = None;
    pods.volumes(2).discard().unwrap_err();
    assert!(!pods.volumes(2).directory.path(2, id(1)).exists());
}

#[test]
fn process_of_another_life_gets_and_leaves_nothing() {
    let pods = Pods::new(2);
    pods.copy_all(1);
    let mut volumes = pods.volumes(0);
    volumes.siblings = Some(Siblings::at("0-2-b".to_owned(), pods.addresses.clone()));
    let error = volumes.contents().unwrap_err().to_string();
    assert!(error.contains("belongs to life 0-1-a"), "{error}");
    let write = |path: &Path| std::fs::write(path, part(0, 2));
    volumes.directory.complete(0, id(2), write).unwrap();
    volumes.share(id(2), None, [1]).unwrap_err();
    let held = pods.volumes(1).directory.contents().unwrap();
    assert_eq!(held[&0], [id(1)].into(), "the copy before stays");
}

#[test]
fn transfer_that_is_cut_leaves_the_copy_before() {
    let pods = Pods::new(2);
    pods.copy_all(1);
    let mut stream = TcpStream::connect(pods.addresses[1]).unwrap();
    let request = format!(
        r#"{{"life":"{LIFE}","what":{{"hold":{{"shard":0,"id":{{"generation":1,"step":2}},"kept":{{"generation":1,"step":1}},"numBytes":100}}}}}}"#
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
fn copy_that_is_too_large_is_refused() {
    let pods = Pods::new(2);
    let volumes = pods.volumes(0);
    let write = |path: &Path| std::fs::write(path, vec![0; 3 << 20]);
    volumes.directory.complete(0, id(1), write).unwrap();
    volumes.share(id(1), None, [1]).unwrap_err();
    assert!(pods.volumes(1).directory.contents().unwrap().is_empty());
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
