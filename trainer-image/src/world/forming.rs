//! Building the process group of a generation.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use roundhouse_c10d::{GroupOptions, ProcessGroup, Store};
use roundhouse_elastic::Place;
use tch::Device;

use super::World;
use crate::blocking::{self, Waited};
use crate::failure::Failure;
use crate::faults::{self, Point};

/// Timeouts of a collective that connecting may take. It keeps to one by itself, but not when the store's host
/// is stopped. With the time to gather it is less than the agent gives to forming.
const TIMEOUTS_TO_CONNECT: u32 = 3;

impl World {
    /// Builds the process group of a generation in its part of the store; returns when all its ranks have
    /// come, or `None` when `is_pointless` became true before. Whoever is left connecting to a peer that died
    /// waits for its timeout, and drops what it gets.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when one did not come before the timeout.
    pub fn form(
        place: &Place,
        store: Store,
        device: Device,
        options: GroupOptions,
        is_pointless: impl FnMut() -> bool,
    ) -> Result<Option<Self>, Failure> {
        let (rank, size) = (place.rank, place.world_size);
        faults::point(Point::Connect, rank, place.generation);
        let patience = options.timeout * TIMEOUTS_TO_CONNECT;
        let deadline = Instant::now() + patience;
        let connect = move |_: &blocking::Caller| ProcessGroup::new(&store, rank, size, &options);
        match blocking::call("connecting", deadline, is_pointless, connect)? {
            Waited::Returned(group) => Ok(Some(Self {
                rank,
                size,
                device,
                group: Some(Arc::new(group?)),
                num_sums: AtomicU64::new(0),
            })),
            Waited::Pointless => Ok(None),
            Waited::TooLate => Err(Failure::PeerLost(format!(
                "the {size} ranks of generation {} have not connected in {} s",
                place.generation,
                patience.as_secs()
            ))),
        }
    }
}
