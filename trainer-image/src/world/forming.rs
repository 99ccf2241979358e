//! Building the process group of a generation.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use roundhouse_c10d::{GroupOptions, ProcessGroup, Store};
use roundhouse_elastic::Place;
use tch::Device;

use super::World;
use crate::device;
use crate::failure::Failure;
use crate::faults::{self, Point};

/// Between two looks at whether it is still worth it.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

impl World {
    /// Builds the process group of a generation in its part of the store; returns when all its ranks have
    /// come, or `None` when `is_pointless` became true before. Connecting cannot be interrupted, so a thread
    /// of its own does it: if a peer dies meanwhile, that one waits for its timeout, and drops what it gets.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when one did not come before the timeout.
    pub fn form(
        place: &Place,
        store: Store,
        own_address: IpAddr,
        device: Device,
        timeout: Duration,
        mut is_pointless: impl FnMut() -> bool,
    ) -> Result<Option<Self>, Failure> {
        let options = GroupOptions {
            backend: device::backend(device),
            timeout,
            address: own_address,
            name: format!("gen{}", place.generation),
        };
        let (rank, size) = (place.rank, place.world_size);
        faults::point(Point::Connect, rank, place.generation);
        let (sender, connected) = channel();
        std::thread::Builder::new()
            .name("connecting".to_owned())
            .spawn(move || {
                // Nobody listens any more when it has become pointless.
                let _ = sender.send(ProcessGroup::new(&store, rank, size, &options));
            })
            .map_err(|error| Failure::Internal(format!("no thread to connect: {error}")))?;
        loop {
            match connected.recv_timeout(LOOK_INTERVAL) {
                Ok(group) => {
                    return Ok(Some(Self {
                        rank,
                        size,
                        device,
                        group: Some(Arc::new(group?)),
                        num_sums: AtomicU64::new(0),
                    }));
                }
                Err(RecvTimeoutError::Timeout) if is_pointless() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::Internal("connecting panicked".to_owned()));
                }
            }
        }
    }
}
