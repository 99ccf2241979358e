//! Serves the copies in the volume of this pod to the processes of its replica in other pods, and
//! holds copies for them.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use roundhouse_elastic::CheckpointId;

use super::directory::Directory;
use super::message::{self, Answer, Request, What};
use super::transfer;

/// How long a peer may send or take nothing.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Most connections at a time. A process of each other pod has one, and one that it has given up.
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
    /// Most bytes of a copy that is held.
    max_bytes: Option<u64>,
    num_connections: AtomicUsize,
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
        // It waits for a connection.
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
        let answered = match request.what {
            What::List => self.directory.contents().map(Answer::Contents),
            What::Fetch { shard, id } => match self.send(&mut stream, shard, id) {
                Ok(()) => return Ok(()),
                Err(error) => Err(error),
            },
            What::Hold {
                shard,
                id,
                kept,
                num_bytes,
            } => self.hold(&mut stream, shard, id, kept, num_bytes),
            What::Delete { shard, id } => self.directory.remove(shard, id).map(|()| Answer::Done),
        };
        let refused = |error: io::Error| {
            Answer::Refused(format!("{}: {error}", self.directory.root().display()))
        };
        message::send(&mut stream, &answered.unwrap_or_else(refused))
    }

    fn send(&self, stream: &mut TcpStream, shard: u32, id: CheckpointId) -> io::Result<()> {
        let (mut file, num_bytes) = transfer::open(&self.directory.path(shard, id))?;
        message::send(stream, &Answer::Copy { num_bytes })?;
        transfer::copy(&mut file, stream, num_bytes, &mut |_| {})
    }

    fn hold(
        &self,
        stream: &mut TcpStream,
        shard: u32,
        id: CheckpointId,
        kept: Option<CheckpointId>,
        num_bytes: u64,
    ) -> io::Result<Answer> {
        if self.max_bytes.is_some_and(|most| num_bytes > most) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.directory.keep(shard, kept)?;
        let write = |path: &Path| transfer::receive(stream, path, num_bytes, &mut |_| {});
        self.directory.complete(shard, id, write)?;
        Ok(Answer::Done)
    }
}
