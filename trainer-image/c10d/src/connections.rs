//! The TCP connections of a Gloo group. Gloo has no abort, so a group is cut off by cutting these: whoever
//! waits for data on one of them, here or at its other end, gets an error at once.

use std::collections::HashSet;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{BorrowedFd, RawFd};

/// Second handles of the connections. While they live, the connections stay open for the peers, too, so
/// they go with the group.
#[derive(Debug, Default)]
pub(crate) struct Connections(Vec<TcpStream>);

/// The open file descriptors of this process.
pub(crate) fn descriptors() -> HashSet<RawFd> {
    std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

impl Connections {
    /// Those that were opened since, except those of the store: while a group is built, others may
    /// connect to the store that this process serves.
    pub(crate) fn opened_since(before: &HashSet<RawFd>, store_port: u16) -> Self {
        let connections = descriptors().into_iter().filter_map(|descriptor| {
            if before.contains(&descriptor) {
                return None;
            }
            // SAFETY: borrowed for the call alone. If it was closed meanwhile, or another thread has
            // opened something else under its number, what is duplicated is told apart below.
            let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
            let stream = TcpStream::from(borrowed.try_clone_to_owned().ok()?);
            let ports = [
                stream.local_addr().ok()?.port(),
                stream.peer_addr().ok()?.port(),
            ];
            (!ports.contains(&store_port)).then_some(stream)
        });
        Self(connections.collect())
    }

    /// Ends all of them, in both directions.
    pub(crate) fn cut(&self) {
        for connection in &self.0 {
            // It may have ended by itself.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}
