//! Serves the copies in the volume of this pod to the processes of its replica in other pods, and
//! holds copies for them.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use roundhouse_elastic::CheckpointId;

use super::directory::Directory;
use super::message::{self, Answer, Operation, Request};
use super::transfer;

/// How long a peer may send or take nothing.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Most connections at a time. Each process of another pod has one, and perhaps one that it has
/// abandoned.
const MOST_CONNECTIONS: usize = 1 << 10;
/// Pause after an accept that failed, for example because no file descriptor is free.
const PAUSE: Duration = Duration::from_millis(100);

/// The thread that serves. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
}

/// What the threads of the server share.
#[derive(Debug)]
struct Served {
    directory: Directory,
    /// Only processes of this life are served.
    life: String,
    /// Most bytes of all copies.
    max_bytes: Option<u64>,
    num_connections: AtomicUsize,
    /// Held while a copy is stored.
    storing: Mutex<()>,
}

impl Server {
    pub(super) fn start(
        address: SocketAddr,
        life: String,
        directory: Directory,
        max_bytes: Option<u64>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let served = Arc::new(Served {
            directory,
            life,
            max_bytes,
            num_connections: AtomicUsize::new(0),
            storing: Mutex::default(),
        });
        let is_ended = Arc::clone(&is_over);
        let accept = move || accept(&listener, &served, &is_ended);
        std::thread::Builder::new()
            .name("copies-server".to_owned())
            .spawn(accept)?;
        Ok(Self { address, is_over })
    }

    #[cfg(test)]
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // The thread blocks in `accept`: a connection wakes it.
        let _ = TcpStream::connect_timeout(&self.address, IDLE_TIMEOUT);
    }
}

fn accept(listener: &TcpListener, served: &Arc<Served>, is_over: &AtomicBool) {
    loop {
        let accepted = listener.accept();
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok((stream, _)) = accepted else {
            std::thread::sleep(PAUSE);
            continue;
        };
        if served.num_connections.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
            continue;
        }
        served.num_connections.fetch_add(1, Ordering::Relaxed);
        let connection = Connection(Arc::clone(served));
        let answer = move || {
            // An error is that of the peer's connection. It will ask again.
            let _ = connection.0.answer(stream);
        };
        // Without a thread the connection is closed.
        let _ = std::thread::Builder::new()
            .name("copies-connection".to_owned())
            .spawn(answer);
    }
}

/// Counts as open until it is dropped.
struct Connection(Arc<Served>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.num_connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Served {
    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        transfer::prepare(&stream, IDLE_TIMEOUT)?;
        let request: Request = message::receive(&mut stream)?;
        if request.life != self.life {
            let reason = format!("this process belongs to life {}", self.life);
            return message::send(&mut stream, &Answer::Refused(reason));
        }
        let answered = match request.operation {
            Operation::List => self.directory.contents().map(Answer::Contents),
            Operation::Fetch { shard, id } => {
                match transfer::open(&self.directory.path(shard, id)) {
                    Ok((mut file, num_bytes)) => {
                        message::send(&mut stream, &Answer::Copy { num_bytes })?;
                        // An error closes the connection: the peer expects bytes of the copy.
                        return transfer::copy(&mut file, &mut stream, num_bytes, &mut |_| {});
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
            } => {
                // A sender may have given an earlier request up that is still at work.
                let _one = self.storing.lock().unwrap_or_else(PoisonError::into_inner);
                let freed = self.free(shard, kept, &strays, num_bytes);
                freed.and_then(|()| self.store(&mut stream, shard, id, num_bytes))
            }
            Operation::Delete { shard, id } => {
                self.directory.remove(shard, id).map(|()| Answer::Done)
            }
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
