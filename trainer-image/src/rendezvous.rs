//! Where the ranks of a generation find each other: the store of the generation's master.
//!
//! Process 0 of each worker hosts a store for its whole life; only the one of the master is used.
//! The master's worker, or another, may come up later than the rest, so all first gather at the
//! store: until a deadline, or until a newer generation makes it pointless. Only then the process
//! group is built.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roundhouse_c10d::Store;
use roundhouse_contract::Master;
use roundhouse_elastic::Place;
use tch::Device;

use crate::device;
use crate::failure::Failure;
use crate::world::World;

/// How long the ranks may take to gather. Longer than the kubelet takes to show a new membership
/// to all pods (its sync period is a minute).
const GATHER_DEADLINE: Duration = Duration::from_mins(2);
/// How long the port may be taken, say by a process that is about to end.
const HOST_DEADLINE: Duration = Duration::from_secs(15);
const LOOPBACK: &str = "127.0.0.1";
/// One try to connect.
const CONNECT_TRY: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// Between two looks at how many have come: shorter in a small world, since nobody trains meanwhile.
const PAUSE_PER_RANK: Duration = Duration::from_micros(100);
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// Counter of the ranks that have come, in the generation's part of the store.
const ARRIVED: &str = "arrived";

/// This process' end of every rendezvous.
#[derive(Debug)]
pub struct Rendezvous {
    own_address: IpAddr,
    device: Device,
    own_store: Option<Store>,
    collective_timeout: Duration,
}

impl Rendezvous {
    /// Opens this worker's store if this is its process 0.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when the port stays taken; it is named.
    pub fn open(
        own_address: IpAddr,
        port: u16,
        local_rank: u32,
        collective_timeout: Duration,
    ) -> Result<Self, Failure> {
        let own_store = (local_rank == 0)
            .then(|| host(port, collective_timeout))
            .transpose()?;
        Ok(Self {
            own_address,
            device: device::own(local_rank),
            own_store,
            collective_timeout,
        })
    }

    /// How many ranks stand at this process' store for a generation that it is the master of.
    ///
    /// # Errors
    /// It has no store, or that does not answer.
    pub fn num_arrived(&self, generation: u64) -> Result<u32, Failure> {
        let store = self.own_store.as_ref();
        let store = store.ok_or_else(|| Failure::Internal("no store of its own".to_owned()))?;
        let arrived = part_of(store, generation)?.add(ARRIVED, 0)?;
        Ok(u32::try_from(arrived).unwrap_or_default())
    }

    /// Forms the world of a generation. `None` when `is_pointless` became true before.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when the master or a peer did not come.
    pub fn form(
        &self,
        place: &Place,
        mut is_pointless: impl FnMut() -> bool,
    ) -> Result<Option<World>, Failure> {
        if place.world_size == 1 {
            return Ok(Some(World::alone()));
        }
        let deadline = Instant::now() + GATHER_DEADLINE;
        // The host, too, has a new connection for each generation: one that nobody waits for any more may still
        // be waiting for a key on its own.
        let own = |store: &Store| Master {
            address: LOOPBACK.to_owned(),
            port: store.port(),
        };
        let own = self.own_store.as_ref().map(own);
        let master = own.filter(|_| place.rank == 0);
        let master = master.as_ref().unwrap_or(&place.master);
        let Some(store) = connect(master, deadline, &mut is_pointless)? else {
            return Ok(None);
        };
        // The others may be slower than the connection was: NCCL's first rank loads a lot before it sets its key.
        store.set_timeout(self.collective_timeout)?;
        let store = part_of(&store, place.generation)?;
        if !gather(place, &store, deadline, &mut is_pointless)? {
            return Ok(None);
        }
        World::form(
            place,
            store,
            self.own_address,
            self.device,
            self.collective_timeout,
            is_pointless,
        )
    }
}

/// A generation's part of a store.
fn part_of(store: &Store, generation: u64) -> Result<Store, Failure> {
    Ok(store.prefix(&format!("gen{generation}"))?)
}

/// The master's store; `None` when it became pointless.
fn connect(
    master: &Master,
    deadline: Instant,
    is_pointless: &mut impl FnMut() -> bool,
) -> Result<Option<Store>, Failure> {
    while !is_pointless() {
        match Store::connect(&master.address, master.port, CONNECT_TRY) {
            Ok(store) => return Ok(Some(store)),
            Err(error) if Instant::now() >= deadline => {
                return Err(Failure::PeerLost(format!(
                    "no rendezvous store at {}:{} for {} s: {error}",
                    master.address,
                    master.port,
                    GATHER_DEADLINE.as_secs()
                )));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    Ok(None)
}

/// Waits until all ranks are at the store; false when it became pointless.
fn gather(
    place: &Place,
    store: &Store,
    deadline: Instant,
    is_pointless: &mut impl FnMut() -> bool,
) -> Result<bool, Failure> {
    let world_size = i64::from(place.world_size);
    let pause = pause_between_looks(place.world_size);
    let mut num_arrived = store.add(ARRIVED, 1)?;
    while num_arrived < world_size {
        if is_pointless() {
            return Ok(false);
        }
        if Instant::now() >= deadline {
            return Err(Failure::PeerLost(format!(
                "{num_arrived} of {world_size} ranks came to generation {} in {} s",
                place.generation,
                GATHER_DEADLINE.as_secs()
            )));
        }
        std::thread::sleep(pause);
        num_arrived = store.add(ARRIVED, 0)?;
    }
    Ok(true)
}

/// All ranks ask one store, so more of them ask less often.
fn pause_between_looks(world_size: u32) -> Duration {
    PAUSE_PER_RANK
        .saturating_mul(world_size)
        .clamp(SHORTEST_PAUSE, PAUSE)
}

fn host(port: u16, timeout: Duration) -> Result<Store, Failure> {
    let deadline = Instant::now() + HOST_DEADLINE;
    loop {
        match Store::host(port, timeout) {
            Ok(store) => return Ok(store),
            Err(error) if Instant::now() >= deadline => {
                return Err(Failure::PeerLost(format!(
                    "cannot host the rendezvous store on port {port}: {error}"
                )));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_the_world_the_less_often_a_rank_asks() {
        assert_eq!(pause_between_looks(2), SHORTEST_PAUSE);
        assert_eq!(pause_between_looks(100), Duration::from_millis(10));
        assert_eq!(pause_between_looks(u32::MAX), PAUSE);
    }
}
