//! The copies in the other pods of this process' replica.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use roundhouse_contract::environment::ReplicaPods;
use roundhouse_contract::ports;
use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::local_copies::Contents;

use super::message::{self, Answer, Operation, Request};
use super::server::IDLE_TIMEOUT;
use super::transfer;

/// How long one attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long a sibling that starts at the same time may need before it listens.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(20);
/// How long a pod may need until a copy that it has received is on its disk.
const DURABLE_TIMEOUT: Duration = Duration::from_mins(5);

/// The processes with the local rank of this one in all pods of its replica.
#[derive(Clone, Debug)]
pub(super) struct Siblings {
    life: String,
    addresses: Vec<SocketAddr>,
}

/// Why a request to another pod failed.
#[derive(Debug, thiserror::Error)]
#[error("pod {pod} of this replica: {error}")]
pub(super) struct RequestFailed {
    pod: u32,
    error: io::Error,
}

impl Siblings {
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if an address of the replica is not an IP address.
    pub(super) fn of(pods: &ReplicaPods, local_rank: u32) -> io::Result<Self> {
        let addresses = pods.addresses.iter();
        let addresses = addresses.map(|it| ports::at(it, ports::PEER_COPIES, local_rank));
        let addresses: Option<Vec<SocketAddr>> = addresses.collect();
        Ok(Self {
            life: pods.life.clone(),
            addresses: addresses.ok_or(ErrorKind::InvalidInput)?,
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

    /// Lists the copies in the volume of a pod.
    pub(super) fn contents(&self, pod: u32) -> Result<Contents, RequestFailed> {
        self.ask(pod, Operation::List, |_, answer| match answer {
            Answer::Contents(contents) => Ok(contents),
            other => Err(unexpected(other)),
        })
    }

    /// Asks a pod for a copy. Returns the connection and the number of bytes to read from it.
    pub(super) fn fetch(
        &self,
        pod: u32,
        (shard, id): (u32, CheckpointId),
    ) -> Result<(TcpStream, u64), RequestFailed> {
        let operation = Operation::Fetch { shard, id };
        self.ask(pod, operation, |stream, answer| match answer {
            Answer::Copy { num_bytes } => Ok((stream, num_bytes)),
            other => Err(unexpected(other)),
        })
    }

    /// Sends a request to store a copy, and the bytes of its file.
    pub(super) fn store(
        &self,
        pod: u32,
        operation: Operation,
        (mut file, num_bytes): (File, u64),
    ) -> Result<(), RequestFailed> {
        let send = || {
            let mut stream = self.request(pod, operation)?;
            // A pod that refuses the copy answers before it has all bytes.
            let sent = transfer::copy(&mut file, &mut stream, num_bytes, &mut |_| {});
            stream.set_read_timeout(Some(DURABLE_TIMEOUT))?;
            match message::receive(&mut stream) {
                Ok(Answer::Done) => sent,
                Ok(other) => Err(unexpected(other)),
                Err(error) => sent.and(Err(error)),
            }
        };
        send().map_err(|error| RequestFailed { pod, error })
    }

    /// Deletes a copy in another pod.
    pub(super) fn delete(
        &self,
        pod: u32,
        shard: u32,
        id: CheckpointId,
    ) -> Result<(), RequestFailed> {
        let operation = Operation::Delete { shard, id };
        self.ask(pod, operation, |_, answer| match answer {
            Answer::Done => Ok(()),
            other => Err(unexpected(other)),
        })
    }

    fn ask<T>(
        &self,
        pod: u32,
        operation: Operation,
        take: impl FnOnce(TcpStream, Answer) -> io::Result<T>,
    ) -> Result<T, RequestFailed> {
        let ask = || {
            let mut stream = self.request(pod, operation)?;
            let answer = message::receive(&mut stream)?;
            take(stream, answer)
        };
        ask().map_err(|error| RequestFailed { pod, error })
    }

    fn request(&self, pod: u32, operation: Operation) -> io::Result<TcpStream> {
        let mut stream = self.connect(pod)?;
        transfer::prepare(&stream, IDLE_TIMEOUT)?;
        let life = self.life.clone();
        message::send(&mut stream, &Request { life, operation })?;
        Ok(stream)
    }

    fn connect(&self, pod: u32) -> io::Result<TcpStream> {
        let address = self.address(pod).ok_or(ErrorKind::NotFound)?;
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        loop {
            match TcpStream::connect_timeout(&address, ATTEMPT) {
                Ok(stream) => return Ok(stream),
                Err(error) if Instant::now() >= deadline => {
                    return Err(io::Error::new(error.kind(), format!("{address}: {error}")));
                }
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }
}

fn unexpected(answer: Answer) -> io::Error {
    match answer {
        Answer::Refused(reason) => io::Error::other(reason),
        Answer::Contents(_) | Answer::Copy { .. } | Answer::Done => ErrorKind::InvalidData.into(),
    }
}
