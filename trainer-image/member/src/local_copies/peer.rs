//! Requests to a process in another pod, about the copies in its volume.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::local_copies::Contents;

use super::message::{self, Answer, Operation, Request};
use super::server::IDLE_TIMEOUT;
use super::transfer;

/// How long one attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(20);

/// A process in another pod with the local rank of this one.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// Name of its pod in errors.
    pub(super) name: String,
    /// The life of a replica of several pods, or the pair of a worker and its holder: the peer
    /// answers only processes that name it.
    pub(super) life: String,
    pub(super) address: SocketAddr,
    /// How long to try to connect.
    pub(super) patience: Duration,
    /// How long the pod may need until a copy that it has received is on its disk.
    pub(super) durable: Duration,
}

/// Why a request to another pod failed.
#[derive(Debug, thiserror::Error)]
#[error("{pod}: {error}")]
pub(super) struct RequestFailed {
    pod: String,
    error: io::Error,
}

impl Peer {
    /// Lists the copies in the volume of the pod.
    pub(super) fn contents(&self) -> Result<Contents, RequestFailed> {
        self.ask(Operation::List, |_, answer| match answer {
            Answer::Contents(contents) => Ok(contents),
            other => Err(unexpected(other)),
        })
    }

    /// Asks for a copy. Returns the connection and the number of bytes to read from it.
    pub(super) fn fetch(
        &self,
        (shard, id): (u32, CheckpointId),
    ) -> Result<(TcpStream, u64), RequestFailed> {
        let operation = Operation::Fetch { shard, id };
        self.ask(operation, |stream, answer| match answer {
            Answer::Copy { num_bytes } => Ok((stream, num_bytes)),
            other => Err(unexpected(other)),
        })
    }

    /// Sends a request to store a copy, and the bytes of its file.
    pub(super) fn store(
        &self,
        operation: Operation,
        (file, num_bytes): (File, u64),
    ) -> Result<(), RequestFailed> {
        let send = || {
            let mut stream = self.request(operation)?;
            // A pod that refuses the copy answers before it has all bytes.
            let sent = transfer::send(&file, &mut stream, num_bytes);
            stream.set_read_timeout(Some(self.durable))?;
            match message::receive(&mut stream) {
                Ok(Answer::Done) => sent,
                Ok(other) => Err(unexpected(other)),
                Err(error) => sent.and(Err(error)),
            }
        };
        send().map_err(|error| self.failed(error))
    }

    /// Deletes a copy in the pod.
    pub(super) fn delete(&self, shard: u32, id: CheckpointId) -> Result<(), RequestFailed> {
        self.change(Operation::Delete { shard, id })
    }

    /// Deletes all copies of a shard in the pod.
    pub(super) fn discard(&self, shard: u32) -> Result<(), RequestFailed> {
        self.change(Operation::Discard { shard })
    }

    fn change(&self, operation: Operation) -> Result<(), RequestFailed> {
        self.ask(operation, |_, answer| match answer {
            Answer::Done => Ok(()),
            other => Err(unexpected(other)),
        })
    }

    fn ask<T>(
        &self,
        operation: Operation,
        take: impl FnOnce(TcpStream, Answer) -> io::Result<T>,
    ) -> Result<T, RequestFailed> {
        let ask = || {
            let mut stream = self.request(operation)?;
            let answer = message::receive(&mut stream)?;
            take(stream, answer)
        };
        ask().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> RequestFailed {
        RequestFailed {
            pod: self.name.clone(),
            error,
        }
    }

    fn request(&self, operation: Operation) -> io::Result<TcpStream> {
        let mut stream = self.connect()?;
        transfer::prepare(&stream, IDLE_TIMEOUT)?;
        let life = self.life.clone();
        message::send(&mut stream, &Request { life, operation })?;
        Ok(stream)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let address = self.address;
        let deadline = Instant::now() + self.patience;
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
