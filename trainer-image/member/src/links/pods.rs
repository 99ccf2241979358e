//! How the processes of a replica in several pods meet: each listens at the address of its pod, at
//! a port for its local rank. A process names its life and itself, and the other one answers with
//! the life, and the first one confirms that it has read it. So a process of a former life, which
//! may still listen, never connects with one of the next, and no connection counts that its other
//! end has given up. This separates lives; it does not keep an attacker out.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use roundhouse_contract::environment::{REPLICA_ADDRESSES, ReplicaPods};
use roundhouse_contract::ports;

use super::MeetingPlace;
use super::socket::Socket;
use crate::failure::Failure;

/// How long one attempt to connect, and to exchange names, may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// What a process sends once it has read the life.
const CONFIRMED: [u8; 1] = [1];
/// Bytes in which a process names a life. The agent accepts no longer one.
const LIFE_BYTES: usize = 128;

pub(super) struct Pods {
    life: [u8; LIFE_BYTES],
    addresses: Vec<SocketAddr>,
    listener: TcpListener,
    shard: u32,
}

impl Pods {
    /// Listens as the process with this local rank.
    pub(super) fn listen(pods: &ReplicaPods, local_rank: u32, procs: u32) -> Result<Self, Failure> {
        let addresses: Vec<SocketAddr> = pods
            .addresses
            .iter()
            .flat_map(|address| (0..procs).map(move |local| (address, local)))
            .map(|(address, local)| ports::at(address, ports::REPLICA_LINKS, local))
            .collect::<Option<_>>()
            .ok_or_else(|| failed(REPLICA_ADDRESSES, ErrorKind::InvalidInput.into()))?;
        let shard = pods.pod * procs + local_rank;
        let own = addresses.get(shard as usize).copied();
        let own = own.ok_or_else(|| failed("the replica", ErrorKind::NotFound.into()))?;
        let listener = TcpListener::bind(own);
        let listener = listener
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|error| failed(&own.to_string(), error))?;
        let mut life = [0; LIFE_BYTES];
        for (place, byte) in life.iter_mut().zip(pods.life.bytes()) {
            *place = byte;
        }
        Ok(Self {
            life,
            addresses,
            listener,
            shard,
        })
    }
}

fn failed(path: &str, error: Error) -> Failure {
    Failure::Io {
        path: path.into(),
        error,
    }
}

impl MeetingPlace for Pods {
    fn connect(&self, shard: u32) -> std::io::Result<Socket> {
        let address = self.addresses.get(shard as usize);
        let address = address.ok_or(ErrorKind::NotFound)?;
        let mut stream = TcpStream::connect_timeout(address, ATTEMPT)?;
        prepare(&stream)?;
        stream.write_all(&self.life)?;
        stream.write_all(&self.shard.to_le_bytes())?;
        let mut life = [0; LIFE_BYTES];
        stream.read_exact(&mut life)?;
        if life != self.life {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        stream.write_all(&CONFIRMED)?;
        Ok(Socket::Remote(stream))
    }

    fn accept(&self) -> std::io::Result<(u32, Socket)> {
        let (mut stream, _) = self.listener.accept()?;
        stream.set_nonblocking(false)?;
        prepare(&stream)?;
        let (mut life, mut name) = ([0; LIFE_BYTES], [0; 4]);
        stream.read_exact(&mut life)?;
        stream.read_exact(&mut name)?;
        let shard = u32::from_le_bytes(name);
        let is_sibling = shard > self.shard && (shard as usize) < self.addresses.len();
        if life != self.life || !is_sibling {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        stream.write_all(&self.life)?;
        // A sibling that has given this attempt up connects again.
        let mut confirmed = [0; 1];
        stream.read_exact(&mut confirmed)?;
        if confirmed != CONFIRMED {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        Ok((shard, Socket::Remote(stream)))
    }

    fn name(&self) -> String {
        let own = self.addresses.get(self.shard as usize);
        own.map(SocketAddr::to_string).unwrap_or_default()
    }
}

/// A message is small and is waited for. A silent client must not keep others waiting.
fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ATTEMPT))
}
