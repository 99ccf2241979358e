//! The TCP connections of a Gloo group. Gloo has no abort, so an abort closes these connections. A
//! thread that waits for data on one of them, in this process or in a peer, then gets an error at
//! once.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// Duplicates of the group's connections. The connections stay open while the duplicates live, so
/// the group must own them and drop them with itself.
#[derive(Debug, Default)]
pub(crate) struct Connections(Vec<TcpStream>);

/// The open sockets of this process by inode, each with a descriptor. Descriptors alone do not
/// identify a socket: if another thread closes a socket meanwhile, a new socket can reuse its
/// descriptor.
pub(crate) fn sockets() -> HashMap<u64, RawFd> {
    std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let target = std::fs::read_link(entry.path()).ok()?;
            let inode = target
                .to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')?;
            let descriptor = entry.file_name().to_str()?.parse().ok()?;
            Some((inode.parse().ok()?, descriptor))
        })
        .collect()
}

impl Connections {
    /// The sockets that were opened since `before`, except connections to stores, which
    /// `store_ports` identify. While a group is created, this process may connect to a store, and
    /// peers may connect to the store that this process serves. Aborting the group must not close
    /// these connections.
    pub(crate) fn opened_since(before: &HashMap<u64, RawFd>, store_ports: &[u16]) -> Self {
        let connections = sockets().into_iter().filter_map(|(inode, descriptor)| {
            if before.contains_key(&inode) {
                return None;
            }
            // SAFETY: borrowed only for the call. If another thread closed the descriptor
            // meanwhile, or reused it, the checks below reject the duplicate.
            let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
            let stream = TcpStream::from(borrowed.try_clone_to_owned().ok()?);
            let ports = [
                stream.local_addr().ok()?.port(),
                stream.peer_addr().ok()?.port(),
            ];
            let is_of_store = ports.iter().any(|port| store_ports.contains(port));
            (!is_of_store).then_some(stream)
        });
        Self(connections.collect())
    }

    /// Number of connections in the group.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a peer has closed a connection and this process has read all its data.
    pub(crate) fn is_one_ended(&self) -> bool {
        self.0.iter().any(|connection| {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            match recv(connection, &mut [0], flags) {
                Ok((length, _)) => length == 0,
                Err(Errno::WOULDBLOCK | Errno::INTR) => false,
                Err(_) => true,
            }
        })
    }

    /// Closes all connections in both directions.
    pub(crate) fn cut(&self) {
        for connection in &self.0 {
            // An error means that the connection is closed already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;

    use rustix::io::dup2;

    use super::*;

    /// A listener, and both ends of a connection to it.
    fn pair() -> (TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        (listener, near, far)
    }

    #[test]
    fn connection_is_ended_when_all_data_is_read() {
        let (_listener, mut own, mut peer) = pair();
        let connections = Connections(vec![own.try_clone().unwrap()]);
        assert!(!connections.is_one_ended());
        peer.write_all(&[7]).unwrap();
        drop(peer);
        while own.peek(&mut [0]).unwrap() == 0 {}
        assert!(!connections.is_one_ended());
        assert_eq!(own.read(&mut [0]).unwrap(), 1);
        while !connections.is_one_ended() {
            std::thread::yield_now();
        }
    }

    /// This test closes no connection, because other tests of this process have sockets, too.
    #[test]
    fn earlier_sockets_and_stores_are_not_the_groups() {
        let (_first, early, _peer_of_early) = pair();
        let (_second, former, _peer_of_former) = pair();
        let before = sockets();
        let (_third, own, _peer_of_own) = pair();
        // This descriptor belonged to a socket that is closed now.
        let mut reused = OwnedFd::from(former);
        dup2(&own, &mut reused).unwrap();
        let (store, of_store, _peer_of_store) = pair();
        let store_port = store.local_addr().unwrap().port();
        let opened = Connections::opened_since(&before, &[1, store_port]);
        let port = |stream: &TcpStream| stream.local_addr().unwrap().port();
        let ports: Vec<u16> = opened.0.iter().map(port).collect();
        assert!(ports.contains(&port(&own)));
        for other in [&early, &of_store] {
            assert!(!ports.contains(&port(other)));
        }
    }

    #[test]
    fn cut_closes_both_directions() {
        let (_listener, mut own, mut peer) = pair();
        Connections(vec![own.try_clone().unwrap()]).cut();
        assert_eq!(own.read(&mut [0]).unwrap(), 0);
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        assert_eq!(own.write(&[7]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
