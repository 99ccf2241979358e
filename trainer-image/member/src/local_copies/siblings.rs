//! The copies in the other pods of this process' replica.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use roundhouse_contract::environment::ReplicaPods;
use roundhouse_contract::ports;
use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::local_copies::Volume;

use super::message::{self, Answer, Request, What};
use super::server::IDLE_TIMEOUT;
use super::transfer;

/// How long one attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long a sibling that starts at the same time may need before it listens.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(20);

/// The processes with the local rank of this one in all pods of its replica.
#[derive(Clone, Debug)]
pub(super) struct Siblings {
    life: String,
    addresses: Vec<SocketAddr>,
}

/// Why a request to another pod failed.
#[derive(Debug, thiserror::Error)]
#[error("pod {pod} of this replica, at {address}: {error}")]
pub(crate) struct Unreachable {
    pod: u32,
    address: SocketAddr,
    error: io::Error,
}

impl Siblings {
    /// # Errors
    /// An address is none.
    pub(super) fn of(pods: &ReplicaPods, local_rank: u32) -> io::Result<Self> {
        let port = u16::try_from(local_rank).ok();
        let port = port.and_then(|local| ports::REPLICA_COPIES.checked_add(local));
        let port = port.ok_or(ErrorKind::InvalidInput)?;
        let parse = |text: &String| text.parse::<IpAddr>().map_err(io::Error::other);
        let addresses = pods.addresses.iter().map(parse);
        let addresses = addresses.map(|ip| ip.map(|ip| SocketAddr::new(ip, port)));
        Ok(Self {
            life: pods.life.clone(),
            addresses: addresses.collect::<io::Result<_>>()?,
        })
    }

    #[cfg(test)]
    pub(super) const fn at(life: String, addresses: Vec<SocketAddr>) -> Self {
        Self { life, addresses }
    }

    pub(super) fn num_pods(&self) -> u32 {
        u32::try_from(self.addresses.len()).unwrap_or(u32::MAX)
    }

    /// Where a pod serves its copies.
    pub(super) fn address(&self, pod: u32) -> Option<SocketAddr> {
        self.addresses.get(pod as usize).copied()
    }

    /// The copies in the volume of a pod.
    pub(super) fn contents(&self, pod: u32) -> Result<Volume, Unreachable> {
        self.ask(pod, What::List, |_, answer| match answer {
            Answer::Contents(contents) => Ok(contents),
            other => Err(unexpected(other)),
        })
    }

    /// Writes a copy of another pod to a new file.
    pub(super) fn fetch(
        &self,
        pod: u32,
        (shard, id): (u32, CheckpointId),
        path: &Path,
        moves: &mut dyn FnMut(u64),
    ) -> Result<(), Unreachable> {
        let what = What::Fetch { shard, id };
        self.ask(pod, what, |stream, answer| match answer {
            Answer::Copy { num_bytes } => transfer::receive(stream, path, num_bytes, moves),
            other => Err(unexpected(other)),
        })
    }

    /// Lets a pod hold a copy in place of all others of its shard but one. `path` is the copy.
    pub(super) fn hold(
        &self,
        pod: u32,
        (shard, id): (u32, CheckpointId),
        kept: Option<CheckpointId>,
        path: &Path,
    ) -> Result<(), Unreachable> {
        let (mut file, num_bytes) =
            transfer::open(path).map_err(|error| self.unreachable(pod, error))?;
        let what = What::Hold {
            shard,
            id,
            kept,
            num_bytes,
        };
        let send = || {
            let mut stream = self.request(pod, what)?;
            // A pod that refuses the copy answers before it has all bytes.
            let sent = transfer::copy(&mut file, &mut stream, num_bytes, &mut |_| {});
            match message::receive(&mut stream) {
                Ok(Answer::Done) => sent,
                Ok(other) => Err(unexpected(other)),
                Err(error) => sent.and(Err(error)),
            }
        };
        send().map_err(|error| self.unreachable(pod, error))
    }

    /// Deletes a copy in another pod.
    pub(super) fn delete(&self, pod: u32, shard: u32, id: CheckpointId) -> Result<(), Unreachable> {
        self.ask(pod, What::Delete { shard, id }, |_, answer| match answer {
            Answer::Done => Ok(()),
            other => Err(unexpected(other)),
        })
    }

    fn ask<T>(
        &self,
        pod: u32,
        what: What,
        take: impl FnOnce(&mut TcpStream, Answer) -> io::Result<T>,
    ) -> Result<T, Unreachable> {
        let ask = || {
            let mut stream = self.request(pod, what)?;
            let answer = message::receive(&mut stream)?;
            take(&mut stream, answer)
        };
        ask().map_err(|error| self.unreachable(pod, error))
    }

    fn request(&self, pod: u32, what: What) -> io::Result<TcpStream> {
        let mut stream = self.connect(pod)?;
        transfer::prepare(&stream, IDLE_TIMEOUT)?;
        let life = self.life.clone();
        message::send(&mut stream, &Request { life, what })?;
        Ok(stream)
    }

    fn connect(&self, pod: u32) -> io::Result<TcpStream> {
        let address = self.address(pod).ok_or(ErrorKind::NotFound)?;
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        loop {
            match TcpStream::connect_timeout(&address, ATTEMPT) {
                Ok(stream) => return Ok(stream),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }

    fn unreachable(&self, pod: u32, error: io::Error) -> Unreachable {
        let nowhere = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0);
        let address = self.address(pod).unwrap_or(nowhere);
        Unreachable {
            pod,
            address,
            error,
        }
    }
}

fn unexpected(answer: Answer) -> io::Error {
    match answer {
        Answer::Refused(reason) => io::Error::other(reason),
        Answer::Contents(_) | Answer::Copy { .. } | Answer::Done => ErrorKind::InvalidData.into(),
    }
}
