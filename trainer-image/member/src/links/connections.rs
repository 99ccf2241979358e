//! The connections of a replica, for a thread that may have to end them.

use super::socket::Socket;
use crate::group::Abort;

/// Duplicates of the sockets of [`Links`](super::Links), with which another thread ends its waits.
#[derive(Debug)]
pub struct Connections(Vec<Socket>);

impl Connections {
    pub(super) fn of<'a>(sockets: impl Iterator<Item = &'a Socket>) -> std::io::Result<Self> {
        Ok(Self(
            sockets.map(Socket::try_clone).collect::<Result<_, _>>()?,
        ))
    }
}

impl Abort for Connections {
    fn abort(&self) {
        for socket in &self.0 {
            // A connection that has failed needs no end.
            let _ = socket.shutdown();
        }
    }
}
