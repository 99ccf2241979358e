//! Serves the copies in this pod's volume to processes in other pods, and stores copies for them.
//! These are processes of its replica, or of the worker whose holder this pod is.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use roundhouse_elastic::CheckpointId;

use super::directory::Directory;
use super::message::{self, Answer, Operation, Request};
use super::transfer;

mod connections;

use connections::Connections;

/// How long a peer may send or take nothing.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause after an accept that failed, for example because no file descriptor is free.
const PAUSE: Duration = Duration::from_millis(100);

/// The thread that serves. When this has been dropped, no peer changes the volume any more.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    served: Arc<Served>,
    accepting: Option<JoinHandle<()>>,
}

/// What peers may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most bytes of all copies in the volume.
    pub(super) max_bytes: Option<u64>,
    /// Most connections at a time: one for each process that the server serves, and some that
    /// these have abandoned.
    pub(super) max_connections: usize,
}

/// What the threads of the server share.
#[derive(Debug)]
struct Served {
    directory: Directory,
    /// Only processes of this life are served.
    life: String,
    /// Most bytes of all copies.
    max_bytes: Option<u64>,
    /// Held while the volume changes.
    changing: Mutex<()>,
    connections: Connections,
}

impl Server {
    pub(super) fn start(
        address: SocketAddr,
        life: String,
        directory: Directory,
        limits: Limits,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let served = Arc::new(Served {
            directory,
            life,
            max_bytes: limits.max_bytes,
            changing: Mutex::default(),
            connections: Connections::new(limits.max_connections),
        });
        let of_thread = Arc::clone(&served);
        let accept = move || accept(&listener, &of_thread);
        let accepting = std::thread::Builder::new()
            .name("copies-server".to_owned())
            .spawn(accept)?;
        Ok(Self {
            address,
            served,
            accepting: Some(accepting),
        })
    }

    #[cfg(test)]
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.served.connections.end();
        // The thread blocks in `accept`: a connection wakes it.
        let _ = TcpStream::connect_timeout(&self.address, IDLE_TIMEOUT);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        // A change in progress completes, or fails because its connection is closed.
        drop(self.served.changing());
    }
}

fn accept(listener: &TcpListener, served: &Arc<Served>) {
    loop {
        let accepted = listener.accept();
        if served.connections.have_ended() {
            return;
        }
        let Ok((stream, _)) = accepted else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let Some(connection) = served.connections.open(&stream) else {
            continue;
        };
        let served = Arc::clone(served);
        let answer = move || {
            // An error is that of the peer's connection. It will ask again.
            let _ = served.answer(stream);
            drop(connection);
        };
        // Without a thread the connection is closed.
        let _ = std::thread::Builder::new()
            .name("copies-connection".to_owned())
            .spawn(answer);
    }
}

impl Served {
    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the volume, unless the server has ended. One change at a time: a sender may have
    /// given an earlier request up that is still at work.
    fn change<T>(&self, change: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let _one = self.changing();
        if self.connections.have_ended() {
            return Err(io::Error::other("this process has begun to train"));
        }
        change()
    }

    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        transfer::prepare(&stream, IDLE_TIMEOUT)?;
        let request: Request = message::receive(&mut stream)?;
        if request.life != self.life {
            let reason = "this process belongs to another life or pair".to_owned();
            return message::send(&mut stream, &Answer::Refused(reason));
        }
        let answered = match request.operation {
            Operation::List => self.directory.contents().map(Answer::Contents),
            Operation::Fetch { shard, id } => {
                match transfer::open(&self.directory.path(shard, id)) {
                    Ok((file, num_bytes)) => {
                        message::send(&mut stream, &Answer::Copy { num_bytes })?;
                        // An error closes the connection: the peer expects bytes of the copy.
                        return transfer::send(&file, &mut stream, num_bytes);
                    }
                    Err(error) => Err(error),
                }
            }
            Operation::Store {
                shard,
                id,
                kept,
                strays,
                num_bytes,
            } => self.change(|| {
                self.free(shard, kept, &strays, num_bytes)?;
                self.store(&mut stream, shard, id, num_bytes)
            }),
            Operation::Delete { shard, id } => self.change(|| {
                self.directory.remove(shard, id)?;
                Ok(Answer::Done)
            }),
            Operation::Discard { shard } => self.change(|| {
                self.directory.keep(shard, None)?;
                Ok(Answer::Done)
            }),
        };
        let refused = |error: io::Error| {
            Answer::Refused(format!("{}: {error}", self.directory.root().display()))
        };
        message::send(&mut stream, &answered.unwrap_or_else(refused))
    }

    /// Deletes what makes room for a copy of a shard.
    fn free(
        &self,
        shard: u32,
        kept: Option<CheckpointId>,
        strays: &[(u32, CheckpointId)],
        num_bytes: u64,
    ) -> io::Result<()> {
        for (shard, id) in strays {
            self.directory.remove(*shard, *id)?;
        }
        self.directory.keep(shard, kept)?;
        let Some(most) = self.max_bytes else {
            return Ok(());
        };
        // Kubernetes would evict a pod whose volume exceeds its size.
        if self.directory.num_bytes()?.saturating_add(num_bytes) > most {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn store(
        &self,
        stream: &mut TcpStream,
        shard: u32,
        id: CheckpointId,
        num_bytes: u64,
    ) -> io::Result<Answer> {
        let write = |path: &Path| transfer::receive(stream, path, num_bytes, &mut |_| {});
        self.directory.complete(shard, id, write)?;
        Ok(Answer::Done)
    }
}

#[cfg(test)]
mod tests;
