//! Sockets between processes of a replica, and how those of one pod meet.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::MeetingPlace;

/// How long a process that has connected may take to name itself.
pub(super) const GREETING: Duration = Duration::from_secs(20);

/// A connection to a sibling, in this pod or in another one.
#[derive(Debug)]
pub(super) enum Socket {
    Local(UnixStream),
    Remote(TcpStream),
}

impl Socket {
    pub(super) fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Local(stream) => stream.write_all(bytes),
            Self::Remote(stream) => stream.write_all(bytes),
        }
    }

    /// Whether the other end has closed the connection. Unread messages may remain.
    pub(super) fn is_closed(&self) -> std::io::Result<bool> {
        let flags = PollFlags::RDHUP;
        let mut sockets = [match self {
            Self::Local(stream) => PollFd::new(stream, flags),
            Self::Remote(stream) => PollFd::new(stream, flags),
        }];
        Ok(poll(&mut sockets, Some(&Timespec::default()))? > 0)
    }

    pub(super) fn try_clone(&self) -> std::io::Result<Self> {
        Ok(match self {
            Self::Local(stream) => Self::Local(stream.try_clone()?),
            Self::Remote(stream) => Self::Remote(stream.try_clone()?),
        })
    }

    pub(super) fn shutdown(&self) -> std::io::Result<()> {
        match self {
            Self::Local(stream) => stream.shutdown(Shutdown::Both),
            Self::Remote(stream) => stream.shutdown(Shutdown::Both),
        }
    }

    pub(super) fn read(&mut self, bytes: &mut [u8], timeout: Duration) -> std::io::Result<()> {
        let timeout = Some(timeout);
        match self {
            Self::Local(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.read_exact(bytes)
            }
            Self::Remote(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.read_exact(bytes)
            }
        }
    }
}

/// A directory that only this life of the replica uses.
pub(super) struct Directory {
    path: PathBuf,
    opened: File,
    listener: UnixListener,
    shard: u32,
}

impl Directory {
    /// Listens in the directory as this process of the replica.
    pub(super) fn open(path: &Path, shard: u32) -> std::io::Result<Self> {
        let opened = File::open(path)?;
        let listener = UnixListener::bind(socket(&opened, shard))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            path: path.to_owned(),
            opened,
            listener,
            shard,
        })
    }
}

/// The path of a socket has at most 108 bytes, so it leads through the open directory.
fn socket(opened: &File, shard: u32) -> PathBuf {
    PathBuf::from(format!(
        "/proc/self/fd/{}/{shard}.socket",
        opened.as_raw_fd()
    ))
}

impl MeetingPlace for Directory {
    fn connect(&self, shard: u32) -> std::io::Result<Socket> {
        let mut stream = UnixStream::connect(socket(&self.opened, shard))?;
        stream.write_all(&self.shard.to_le_bytes())?;
        Ok(Socket::Local(stream))
    }

    fn accept(&self) -> std::io::Result<(u32, Socket)> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(false)?;
        let mut socket = Socket::Local(stream);
        let mut name = [0; 4];
        socket.read(&mut name, GREETING)?;
        Ok((u32::from_le_bytes(name), socket))
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}
