//! The pods of this process' replica, as far as copies of the state go.

use std::io;

use roundhouse_contract::environment::{REPLICA_ADDRESSES, ReplicaPods};
use roundhouse_report::{say, say_error};

use super::directory::Directory;
use super::server::Server;
use super::siblings::Siblings;
use crate::failure::Failure;

/// The pods, their processes with the local rank of this one, and the server for these.
#[derive(Debug)]
pub(super) struct Pods {
    pub(super) replica: ReplicaPods,
    pub(super) siblings: Siblings,
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
        let siblings = Siblings::of(replica, local_rank).map_err(failed)?;
        let address = siblings.address(replica.pod);
        let address = address.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let started = Server::start(address, replica.life.clone(), directory, max_bytes);
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
