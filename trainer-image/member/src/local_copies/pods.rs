//! The pods of this process' replica, as far as copies of the state go.

use std::io;
use std::time::Duration;

use roundhouse_contract::environment::{REPLICA_ADDRESSES, ReplicaPods};
use roundhouse_contract::ports;
use roundhouse_report::{say, say_error};

use super::directory::Directory;
use super::peer::Peer;
use super::server::{Limits, Server};
use crate::failure::Failure;

/// How long a sibling that starts at the same time may need before it listens.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a sibling may need until a copy is on its disk. The copies of the others wait for it.
const DURABLE_TIMEOUT: Duration = Duration::from_mins(5);

/// The pods, their processes with the local rank of this one, and the server for these.
#[derive(Debug)]
pub(super) struct Pods {
    pub(super) replica: ReplicaPods,
    /// By the index of their pod.
    pub(super) siblings: Vec<Peer>,
    _server: Server,
}

impl Pods {
    /// Starts to serve the copies in `directory`. Says where the second copies of this pod go.
    ///
    /// # Errors
    /// [`Failure::Io`] if an address of the replica is none, or if its port is in use.
    pub(super) fn start(
        replica: &ReplicaPods,
        local_rank: u32,
        directory: Directory,
        max_bytes: Option<u64>,
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::Io {
            path: REPLICA_ADDRESSES.into(),
            error,
        };
        let siblings = peers(replica, local_rank);
        let siblings = siblings.ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let own = siblings.get(replica.pod as usize);
        let address = own.map(|own| own.address);
        let address = address.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let limits = Limits {
            max_bytes,
            max_connections: 1 << 10,
        };
        let started = Server::start(address, replica.life.clone(), directory, limits);
        let server = started.map_err(|error| Failure::Io {
            path: address.to_string().into(),
            error,
        })?;
        match replica.holders.get(replica.pod as usize) {
            Some(Some(holder)) => say(&format!(
                "pod {holder} of this replica holds second copies of the state of this pod"
            )),
            Some(None) => say_error(
                "no pod of this replica on another node can hold second copies of the state of this pod: \
                 spread the pods over nodes (topologySpreadConstraints in workers.template)",
            ),
            None => {}
        }
        Ok(Self {
            replica: replica.clone(),
            siblings,
            _server: server,
        })
    }

    /// Whether this pod holds copies of another one.
    pub(super) fn hold_copies_here(&self) -> bool {
        self.replica.holders.contains(&Some(self.replica.pod))
    }
}

/// The processes with one local rank; `None` if an address of the replica is not an IP address.
fn peers(replica: &ReplicaPods, local_rank: u32) -> Option<Vec<Peer>> {
    let addresses = replica.addresses.iter().enumerate();
    let peer = |(pod, address): (usize, &String)| {
        Some(Peer {
            name: format!("pod {pod} of this replica"),
            life: replica.life.clone(),
            address: ports::at(address, ports::PEER_COPIES, local_rank)?,
            patience: CONNECT_TIMEOUT,
            durable: DURABLE_TIMEOUT,
        })
    };
    addresses.map(peer).collect()
}
