//! The ranks of a generation meet at the store of the generation's master, whichever library serves
//! it.
//!
//! Process 0 of each worker serves a store for its whole life; only that of the master is used. The
//! master's worker or another may start later than the rest. So all ranks first gather at the
//! store, until a deadline or until a newer generation makes this pointless. Then the process group
//! is built.

use std::fmt::Debug;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roundhouse_contract::Master;
use roundhouse_contract::environment::CollectiveTimeouts;
use roundhouse_elastic::Place;

use crate::blocking::{self, Waited};
use crate::failure::Failure;
use crate::faults::{self, Point};
use crate::group::{Group, Rendezvous};

mod arrival_timeout;
mod gathering;
mod hosted;
#[cfg(test)]
mod memory;

use arrival_timeout::{ArrivalTimeout, Published};
use gathering::{CONNECT_TRY, Gathering, PAUSE, part_name};
use hosted::Hosted;

/// Version of the exchange between ranks: which collectives a generation and a step use, how many
/// numbers each has, and how the state is sent. Each change raises it, so that ranks of different
/// images do not meet in a collective. The protocol of the membership document, between the
/// operator and an image, has another version.
///
/// 1: the state is broadcast to all ranks. 2: the state goes along routes from ranks that have it
/// to ranks that lack it. 3: ranks report whether their last step was cut short. 4: ranks report
/// their save in flight. 5: the rank that reads a checkpoint reports whether its bytes are damaged
/// or unreadable. 6: ranks report the bytes of the state that they have, and the state may go from
/// replica to replica in shards. 7: the factor of checksums is below 1, so that none of them
/// overflows. 8: ranks claim local copies, and report whether they write one. 9: ranks report
/// whether they could not write one.
pub(crate) const PROTOCOL: u32 = 9;
/// How long the port may be in use, for example by a process that is about to end.
const HOST_DEADLINE: Duration = Duration::from_secs(15);

/// A connection to a key-value store, or to a part of its keys. A call may block indefinitely.
pub trait Store: Debug + Send + Sync + Sized + 'static {
    /// Adds to a counter and returns its new value. A new counter is 0.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if the store is lost.
    fn add(&self, key: &str, amount: i64) -> Result<i64, Failure>;

    /// Returns the part of the store whose keys begin with a name.
    ///
    /// # Errors
    /// Those of [`Self::add`].
    fn part(&self, name: &str) -> Result<Self, Failure>;

    /// Sets the timeout of waits for missing keys.
    ///
    /// # Errors
    /// Those of [`Self::add`].
    fn set_timeout(&self, timeout: Duration) -> Result<(), Failure>;

    /// Deletes all keys of this part.
    ///
    /// # Errors
    /// Those of [`Self::add`].
    fn clear(&self) -> Result<(), Failure>;

    /// The port of the server.
    fn port(&self) -> u16;
}

/// A library with stores and process groups.
pub trait Network: Clone + Debug + Send + 'static {
    type Store: Store;
    type Group: Group;

    /// Serves a store on an address and port of this host.
    ///
    /// # Errors
    /// A failure if the port is in use.
    fn host(&self, address: IpAddr, port: u16, timeout: Duration) -> Result<Self::Store, Failure>;

    /// Connects to the store of another process.
    ///
    /// # Errors
    /// A failure if there is no answer within `timeout`.
    fn dial(&self, address: &str, port: u16, timeout: Duration) -> Result<Self::Store, Failure>;

    /// Connects the gathered ranks; returns when all are connected. Runs in a thread that can be
    /// abandoned.
    ///
    /// # Errors
    /// A failure if a rank is lost.
    fn connect(&self, store: Self::Store, ranks: &Ranks) -> Result<Self::Group, Failure>;
}

/// The ranks to connect.
#[derive(Clone, Copy, Debug)]
pub struct Ranks {
    pub generation: u64,
    pub rank: u32,
    pub size: u32,
    pub timeout: Duration,
    /// Address on which this process listens.
    pub address: IpAddr,
    /// Port of this process' store, if it serves one.
    pub own_store_port: Option<u16>,
}

/// The rendezvous of this process.
#[derive(Debug)]
pub struct StoreRendezvous<N: Network> {
    network: N,
    own_address: IpAddr,
    own_store: Option<N::Store>,
    published: Published,
    hosted: Hosted,
    timeouts: CollectiveTimeouts,
}

impl<N: Network> StoreRendezvous<N> {
    /// Opens this worker's store if this is its process 0.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] with the port if it stays in use.
    pub fn open(
        network: N,
        own_address: IpAddr,
        port: u16,
        local_rank: u32,
        timeouts: CollectiveTimeouts,
    ) -> Result<Self, Failure> {
        let own_store = (local_rank == 0)
            .then(|| host(&network, own_address, port, timeouts.connect))
            .transpose()?;
        Ok(Self {
            network,
            own_address,
            own_store,
            published: Published::default(),
            hosted: Hosted::default(),
            timeouts,
        })
    }

    /// Builds the process group of a generation in its part of the store. Returns when all ranks
    /// have come. A thread that is abandoned while it connects to a dead peer ends at its timeout.
    fn connect(
        &self,
        place: &Place,
        store: N::Store,
        is_pointless: impl FnMut() -> bool,
    ) -> Result<Option<N::Group>, Failure> {
        let ranks = Ranks {
            generation: place.generation,
            rank: place.rank,
            size: place.world_size,
            // The timeout is set again when the ranks have exchanged their step times.
            timeout: self.timeouts.of_first_step(Duration::ZERO),
            address: self.own_address,
            own_store_port: self.own_store.as_ref().map(Store::port),
        };
        faults::point(Point::Connect, ranks.rank, ranks.generation);
        let timeout = self.timeouts.connect;
        let deadline = Instant::now() + timeout;
        let network = self.network.clone();
        let connect = move |_: &blocking::Caller| network.connect(store, &ranks);
        match blocking::call("connecting", || deadline, is_pointless, connect)? {
            Waited::Returned(group) => group.map(Some),
            Waited::Pointless => Ok(None),
            Waited::TooLate => Err(Failure::PeerLost(format!(
                "the {} ranks of generation {} have not connected in {} s",
                ranks.size,
                ranks.generation,
                timeout.as_secs()
            ))),
        }
    }

    fn gather(
        &self,
        place: &Place,
        is_pointless: &mut dyn FnMut() -> bool,
    ) -> Result<Option<N::Store>, Failure> {
        let arrival_timeout = ArrivalTimeout::begin();
        let gathering = Gathering {
            network: self.network.clone(),
            master: self.master(place),
            part: part_name(place.generation, &place.nonce),
            generation: place.generation,
            rank: place.rank,
            world_size: place.world_size,
            protocol: PROTOCOL,
            store_timeout: self.timeouts.connect,
            arrival_timeout: arrival_timeout.clone(),
        };
        // The thread has the more detailed error, so it gets the time to report it first.
        let late = || arrival_timeout.deadline() + 2 * CONNECT_TRY;
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

    /// Address of the store. The host too opens a new connection for each generation, because an
    /// abandoned one may still wait for a key.
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

impl<N: Network> Rendezvous for StoreRendezvous<N> {
    type Group = N::Group;

    fn meet(
        &self,
        place: &Place,
        is_pointless: &mut dyn FnMut() -> bool,
    ) -> Result<Option<N::Group>, Failure> {
        let own_store = self.own_store.as_ref().filter(|_| place.rank == 0);
        if own_store.is_some() {
            self.hosted
                .begin(place.generation, part_name(place.generation, &place.nonce));
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

    fn publish_longest_step(&self, longest: Duration) {
        if let Some(store) = &self.own_store {
            self.published.longest_step(store, longest);
        }
    }

    fn publish_time_beside_steps(&self, most: Duration) {
        if let Some(store) = &self.own_store {
            self.published.beside_steps(store, most);
        }
    }

    fn num_arrived(&self, place: &Place) -> Result<u32, Failure> {
        let store = self.own_store.as_ref();
        let store = store.ok_or_else(|| Failure::Internal("no store of its own".to_owned()))?;
        gathering::num_arrived(store, &part_name(place.generation, &place.nonce))
    }
}

fn host<N: Network>(
    network: &N,
    address: IpAddr,
    port: u16,
    timeout: Duration,
) -> Result<N::Store, Failure> {
    let deadline = Instant::now() + HOST_DEADLINE;
    loop {
        match network.host(address, port, timeout) {
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
