//! A process group that sums numbers over its ranks: rank 0 listens, and the other ranks connect.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use roundhouse_contract::ScriptEnvironment;

/// The limit within which all ranks must connect.
const CONNECT_TIMEOUT: Duration = Duration::from_mins(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The connections of a rank to its peers.
pub(crate) struct ProcessGroup {
    /// Rank 0 has a connection to each other rank, in the order in which they connected. Each other
    /// rank has one connection to rank 0.
    peers: Vec<TcpStream>,
    is_hub: bool,
}

impl ProcessGroup {
    /// Connects to the other ranks of the same generation.
    pub(crate) fn connect(environment: &ScriptEnvironment) -> io::Result<Self> {
        let ScriptEnvironment {
            rank,
            world_size,
            master_address,
            master_port,
            generation,
            ..
        } = environment;
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let is_hub = *rank == 0;
        let peers = if is_hub {
            let listener = retry_until(deadline, || {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, *master_port))
            })?;
            listener.set_nonblocking(true)?;
            (1..*world_size)
                .map(|_| accept(&listener, *generation, deadline))
                .collect::<io::Result<_>>()?
        } else {
            let mut hub = retry_until(deadline, || {
                TcpStream::connect((master_address.as_str(), *master_port))
            })?;
            hub.set_nodelay(true)?;
            write(&mut hub, *generation)?;
            vec![hub]
        };
        Ok(Self { peers, is_hub })
    }

    /// The sum of the numbers of all ranks.
    pub(crate) fn sum(&mut self, own: u64) -> io::Result<u64> {
        if !self.is_hub {
            let hub = &mut self.peers[0];
            write(hub, own)?;
            return read(hub);
        }
        let mut sum = own;
        for peer in &mut self.peers {
            sum += read(peer)?;
        }
        for peer in &mut self.peers {
            write(peer, sum)?;
        }
        Ok(sum)
    }
}

/// Accepts the next peer of the same generation.
fn accept(listener: &TcpListener, generation: u64, deadline: Instant) -> io::Result<TcpStream> {
    loop {
        let (mut peer, _) = retry_until(deadline, || listener.accept())?;
        peer.set_nonblocking(false)?;
        peer.set_nodelay(true)?;
        if read(&mut peer)? == generation {
            return Ok(peer);
        }
    }
}

/// Repeats an attempt until it succeeds or the deadline has passed.
fn retry_until<T>(deadline: Instant, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
            result => return result,
        }
    }
}

fn write(stream: &mut TcpStream, number: u64) -> io::Result<()> {
    stream.write_all(&number.to_le_bytes())
}

fn read(stream: &mut TcpStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
