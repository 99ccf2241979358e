//! Where the ranks of a generation find each other: the store of the generation's master, whichever library serves it.
//!
//! Process 0 of each worker hosts a store for its whole life; only the one of the master is used.
//! The master's worker, or another, may come up later than the rest, so all first gather at the
//! store: until a deadline, or until a newer generation makes it pointless. Only then the process
//! group is built.

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

use arrival_timeout::{ArrivalTimeout, PublishedStep};
use gathering::{CONNECT_TRY, Gathering, PAUSE, part_name};
use hosted::Hosted;

/// Version of what ranks send to each other: which collectives a generation forms and a step ends with, how many numbers
/// each of them has, and how the state moves. It is raised with each change of these, so that ranks of different images do
/// not meet in a collective. The protocol of the membership document, between the operator and an image, is another one.
///
/// 1: the state goes to all ranks in broadcasts. 2: along the routes from ranks that have it to those that lack it. 3: a rank
/// says whether its last step was cut short. 4: and which save it has in flight. 5: the rank that reads a checkpoint says
/// whether its bytes are damaged or the volume did not give them.
pub(crate) const PROTOCOL: u32 = 5;
/// How long the port may be taken, say by a process that is about to end.
const HOST_DEADLINE: Duration = Duration::from_secs(15);

/// A connection to a key-value store, or to a part of its keys. A call may wait for its answer without a bound.
pub trait Store: Debug + Send + Sync + Sized + 'static {
    /// Adds to a counter and returns its new value; a counter that is not set is 0.
    ///
    /// # Errors
    /// [`Failure::PeerLost`]: the store is gone.
    fn add(&self, key: &str, amount: i64) -> Result<i64, Failure>;

    /// The part of the store whose keys begin with a name.
    ///
    /// # Errors
    /// As [`Self::add`].
    fn part(&self, name: &str) -> Result<Self, Failure>;

    /// How long a key that is not set is waited for.
    ///
    /// # Errors
    /// As [`Self::add`].
    fn set_timeout(&self, timeout: Duration) -> Result<(), Failure>;

    /// Deletes all keys of this part.
    ///
    /// # Errors
    /// As [`Self::add`].
    fn clear(&self) -> Result<(), Failure>;

    /// The port that it is served on.
    fn port(&self) -> u16;
}

/// A library that has stores and process groups.
pub trait Network: Clone + Debug + Send + 'static {
    /// Its store.
    type Store: Store;
    /// Its process group.
    type Group: Group;

    /// Serves a store on one address and port of this host.
    ///
    /// # Errors
    /// The port is taken.
    fn host(&self, address: IpAddr, port: u16, timeout: Duration) -> Result<Self::Store, Failure>;

    /// Connects to the store that another process serves.
    ///
    /// # Errors
    /// Nobody answers within `timeout`.
    fn dial(&self, address: &str, port: u16, timeout: Duration) -> Result<Self::Store, Failure>;

    /// Connects the ranks that have gathered; blocks until all are connected. It is called in a thread that can be left
    /// behind.
    ///
    /// # Errors
    /// A rank is gone.
    fn connect(&self, store: Self::Store, ranks: &Ranks) -> Result<Self::Group, Failure>;
}

/// Which ranks are to be connected.
#[derive(Clone, Copy, Debug)]
pub struct Ranks {
    /// The generation.
    pub generation: u64,
    /// Rank of this process.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// How long a collective waits for its peers.
    pub timeout: Duration,
    /// Where this process listens.
    pub address: IpAddr,
    /// Port of the store that this process serves, if it does.
    pub own_store_port: Option<u16>,
}

/// This process' end of every rendezvous.
#[derive(Debug)]
pub struct StoreRendezvous<N: Network> {
    network: N,
    own_address: IpAddr,
    own_store: Option<N::Store>,
    published_step: PublishedStep,
    hosted: Hosted,
    timeouts: CollectiveTimeouts,
}

impl<N: Network> StoreRendezvous<N> {
    /// Opens this worker's store if this is its process 0.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when the port stays taken; it is named.
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
            published_step: PublishedStep::default(),
            hosted: Hosted::default(),
            timeouts,
        })
    }

    /// Builds the process group of a generation in its part of the store; returns when all its ranks have
    /// come. A thread that is left connecting to a peer that died waits for its timeout, and drops what it gets.
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
            // Another one is set when it is known what earlier generations have taught.
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
        // The thread has more to say of why it was in vain, so it may be the first to say it.
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
            self.published_step.publish(store, longest);
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
