//! The TCP connections of a Gloo group. Gloo has no abort, so a group is cut off by cutting these: a
//! thread that waits for data on one of them, here or at its other end, gets an error at once.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// Second handles of the connections. While they live, the connections stay open for the peers, too, so
/// they go with the group.
#[derive(Debug, Default)]
pub(crate) struct Connections(Vec<TcpStream>);

/// The open sockets of this process by inode, with a descriptor of each. The numbers of descriptors alone say
/// nothing: what another thread closes meanwhile, say a former group, leaves its number to a later one.
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
    /// Those that were opened since, except those of stores, by their ports: while a group is built, this
    /// process may connect to one, and others to the one that it serves itself. They would lose it with the group.
    pub(crate) fn opened_since(before: &HashMap<u64, RawFd>, store_ports: &[u16]) -> Self {
        let connections = sockets().into_iter().filter_map(|(inode, descriptor)| {
            if before.contains_key(&inode) {
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
            let is_of_store = ports.iter().any(|port| store_ports.contains(port));
            (!is_of_store).then_some(stream)
        });
        Self(connections.collect())
    }

    /// How many there are.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a peer has ended one of them and all that it has sent is read.
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

    /// Ends all of them, in both directions.
    pub(crate) fn cut(&self) {
        for connection in &self.0 {
            // It may have ended by itself.
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

    /// A listener with a connection to it: both ends.
    fn pair() -> (TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        (listener, near, far)
    }

    #[test]
    fn a_connection_is_ended_when_all_that_came_is_read() {
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

    /// Nothing is cut here: other tests of this process have sockets, too.
    #[test]
    fn sockets_of_before_and_of_stores_are_not_the_groups() {
        let (_first, early, _peer_of_early) = pair();
        let (_second, former, _peer_of_former) = pair();
        let before = sockets();
        let (_third, own, _peer_of_own) = pair();
        // The descriptor's number is the one of a socket that is closed now.
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
    fn a_cut_ends_both_directions() {
        let (_listener, mut own, mut peer) = pair();
        Connections(vec![own.try_clone().unwrap()]).cut();
        assert_eq!(own.read(&mut [0]).unwrap(), 0);
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        assert_eq!(own.write(&[7]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
