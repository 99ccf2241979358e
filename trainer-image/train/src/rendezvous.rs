//! Where the ranks of a generation find each other: the store of the generation's master.
//!
//! Process 0 of each worker hosts a store for its whole life; only the one of the master is used.
//! The master's worker, or another, may come up later than the rest, so all first gather at the
//! store: until a deadline, or until a newer generation makes it pointless. Only then the process
//! group is built.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roundhouse_c10d::{GroupOptions, ProcessGroup, Store};
use roundhouse_contract::Master;
use roundhouse_contract::environment::CollectiveTimeouts;
use roundhouse_elastic::Place;
use roundhouse_member::blocking::{self, Waited};
use roundhouse_member::failure::Failure;
use roundhouse_member::faults::{self, Point};
use tch::Device;

use crate::device;
use crate::failure::lost;
use crate::group::C10dGroup;

mod gathering;
mod hosted;
mod patience;

use gathering::{CONNECT_TRY, Gathering, PAUSE};
use hosted::Hosted;
use patience::{Patience, Told};

/// How long the port may be taken, say by a process that is about to end.
const HOST_DEADLINE: Duration = Duration::from_secs(15);

/// This process' end of every rendezvous.
#[derive(Debug)]
pub struct StoreRendezvous {
    own_address: IpAddr,
    device: Device,
    own_store: Option<Store>,
    told: Told,
    hosted: Hosted,
    timeouts: CollectiveTimeouts,
}

impl StoreRendezvous {
    /// Opens this worker's store if this is its process 0.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when the port stays taken; it is named.
    pub fn open(
        own_address: IpAddr,
        port: u16,
        local_rank: u32,
        device: Device,
        timeouts: CollectiveTimeouts,
    ) -> Result<Self, Failure> {
        let own_store = (local_rank == 0)
            .then(|| host(own_address, port, timeouts.connect))
            .transpose()?;
        Ok(Self {
            own_address,
            device,
            own_store,
            told: Told::default(),
            hosted: Hosted::default(),
            timeouts,
        })
    }

    /// Builds the process group of a generation in its part of the store; returns when all its ranks have
    /// come. A thread that is left connecting to a peer that died waits for its timeout, and drops what it gets.
    fn connect(
        &self,
        place: &Place,
        store: Store,
        is_pointless: impl FnMut() -> bool,
    ) -> Result<Option<C10dGroup>, Failure> {
        let options = GroupOptions {
            backend: device::backend(self.device),
            // The trainer sets another one when it knows what earlier generations have taught.
            timeout: self.timeouts.of_first_step(Duration::ZERO),
            address: self.own_address,
            own_store_port: self.own_store.as_ref().map(Store::port),
            name: format!("gen{}", place.generation),
        };
        let (rank, size) = (place.rank, place.world_size);
        faults::point(Point::Connect, rank, place.generation);
        let patience = self.timeouts.connect;
        let deadline = Instant::now() + patience;
        let connect = move |_: &blocking::Caller| ProcessGroup::new(&store, rank, size, &options);
        match blocking::call("connecting", || deadline, is_pointless, connect)? {
            Waited::Returned(group) => Ok(Some(C10dGroup::new(group.map_err(lost)?, self.device))),
            Waited::Pointless => Ok(None),
            Waited::TooLate => Err(Failure::PeerLost(format!(
                "the {size} ranks of generation {} have not connected in {} s",
                place.generation,
                patience.as_secs()
            ))),
        }
    }

    fn gather(
        &self,
        place: &Place,
        is_pointless: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Store>, Failure> {
        let patience = Patience::begin();
        let gathering = Gathering {
            master: self.master(place),
            generation: place.generation,
            world_size: place.world_size,
            protocol: roundhouse_contract::PROTOCOL,
            store_timeout: self.timeouts.connect,
            patience: patience.clone(),
        };
        // The thread has more to say of why it was in vain, so it may be the first to say it.
        let late = || patience.deadline() + 2 * CONNECT_TRY;
        let hold = move |caller: &blocking::Caller| gathering.hold(caller);
        match blocking::call("gathering", late, is_pointless, hold)? {
            Waited::Returned(store) => store,
            Waited::Pointless => Ok(None),
            Waited::TooLate => Err(Failure::PeerLost(format!(
                "the rendezvous store at {}:{} takes connections, but does not answer",
                place.master.address, place.master.port
            ))),
        }
    }

    /// Where to find the store. The host, too, has a new connection for each generation: one that nobody waits
    /// for any more may still be waiting for a key on its own.
    fn master(&self, place: &Place) -> Master {
        match &self.own_store {
            Some(store) if place.rank == 0 => Master {
                address: self.own_address.to_string(),
                port: store.port(),
            },
            _ => place.master.clone(),
        }
    }
}

impl roundhouse_member::Rendezvous for StoreRendezvous {
    type Group = C10dGroup;

    fn meet(
        &self,
        place: &Place,
        is_pointless: &mut dyn FnMut() -> bool,
    ) -> Result<Option<C10dGroup>, Failure> {
        let own_store = self.own_store.as_ref().filter(|_| place.rank == 0);
        if own_store.is_some() {
            self.hosted.begin(place.generation);
        }
        let Some(store) = self.gather(place, is_pointless)? else {
            return Ok(None);
        };
        let group = self.connect(place, store, is_pointless)?;
        if let (Some(store), true) = (own_store, group.is_some()) {
            self.hosted.clear(store);
        }
        Ok(group)
    }

    fn tell_longest_step(&self, longest: Duration) {
        if let Some(store) = &self.own_store {
            self.told.tell(store, longest);
        }
    }

    fn num_arrived(&self, generation: u64) -> Result<u32, Failure> {
        let store = self.own_store.as_ref();
        let store = store.ok_or_else(|| Failure::Internal("no store of its own".to_owned()))?;
        gathering::num_arrived(store, generation)
    }
}

fn host(address: IpAddr, port: u16, timeout: Duration) -> Result<Store, Failure> {
    let deadline = Instant::now() + HOST_DEADLINE;
    loop {
        match Store::host_at(address, port, timeout) {
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
