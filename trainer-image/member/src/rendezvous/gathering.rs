//! Gathers the ranks of a generation at its store. A request to the store blocks indefinitely if
//! its host is stopped or disconnected while its kernel still accepts connections. So all of this
//! runs in a thread that can be abandoned.

use std::time::Duration;

use roundhouse_contract::Master;

use super::arrival_timeout::ArrivalTimeout;
use super::{Network, Store};
use crate::blocking::Caller;
use crate::failure::Failure;

/// Timeout of one attempt to connect.
pub(super) const CONNECT_TRY: Duration = Duration::from_secs(2);
/// Pause between two attempts.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// Pause per rank between two reads of the number of arrived ranks: short for few ranks, because no
/// rank trains meanwhile.
const PAUSE_PER_RANK: Duration = Duration::from_micros(100);
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// Key of the number of arrived ranks, in the generation's part of the store.
const ARRIVED: &str = "arrived";

/// Key of the sum of the ranks' protocols.
const PROTOCOLS: &str = "protocols";
/// Key of the sum of their squares. Both sums together are those of one protocol only if all ranks
/// have it.
const SQUARES: &str = "protocols-squared";
/// Key of one rank's protocol, followed by the rank. Images of protocol 1 do not write it.
const PROTOCOL_OF_RANK: &str = "protocol-of-rank-";

/// One rank's connection to the store of a generation.
#[derive(Clone, Debug)]
pub(super) struct Gathering<N> {
    pub(super) network: N,
    pub(super) master: Master,
    /// [`part_name`] of the generation.
    pub(super) part: String,
    pub(super) generation: u64,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    /// [`super::PROTOCOL`], except in tests.
    pub(super) protocol: u32,
    /// Timeout of waits for keys once all ranks have come.
    pub(super) store_timeout: Duration,
    /// Timeout of the wait for the other ranks.
    pub(super) arrival_timeout: ArrivalTimeout,
}

/// Name of a generation's part of a store. Ranks without the generation's nonce are in another
/// part, where they meet no rank.
pub(super) fn part_name(generation: u64, nonce: &str) -> String {
    let dash = if nonce.is_empty() { "" } else { "-" };
    format!("gen{generation}{dash}{nonce}")
}

/// Number of ranks that have arrived for a generation, by the name of its part.
pub(super) fn num_arrived<S: Store>(store: &S, part: &str) -> Result<u32, Failure> {
    let arrived = store.part(part)?.add(ARRIVED, 0)?;
    Ok(u32::try_from(arrived).unwrap_or_default())
}

impl<N: Network> Gathering<N> {
    /// Waits until all ranks have arrived. Returns the generation's part of the store; `None` if
    /// the caller does not wait any more.
    pub(super) fn hold(&self, caller: &Caller) -> Result<Option<N::Store>, Failure> {
        let Some(store) = self.connect(caller)? else {
            return Ok(None);
        };
        // Other ranks may need more time than the connection: NCCL's first rank loads much before
        // it sets its key.
        store.set_timeout(self.store_timeout)?;
        let part = store.part(&self.part)?;
        Ok(self.gather(&store, &part, caller)?.then_some(part))
    }

    fn connect(&self, caller: &Caller) -> Result<Option<N::Store>, Failure> {
        let Master { address, port } = &self.master;
        while caller.waits() {
            match self.network.dial(address, *port, CONNECT_TRY) {
                Ok(store) => return Ok(Some(store)),
                Err(error) if self.arrival_timeout.is_over() => {
                    let seconds = self.arrival_timeout.seconds();
                    return Err(Failure::PeerLost(format!(
                        "no rendezvous store at {address}:{port} for {seconds} s: {error}"
                    )));
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        Ok(None)
    }

    fn gather(&self, root: &N::Store, store: &N::Store, caller: &Caller) -> Result<bool, Failure> {
        let world_size = i64::from(self.world_size);
        let pause = pause_between_looks(self.world_size);
        // Write this before the rank counts as arrived, because other ranks then read it.
        store.add(&protocol_of(self.rank), self.protocol.into())?;
        let protocol = i64::from(self.protocol);
        store.add(SQUARES, protocol * protocol)?;
        store.add(PROTOCOLS, protocol)?;
        let mut num_arrived = store.add(ARRIVED, 1)?;
        self.arrival_timeout.learn(root)?;
        while num_arrived < world_size {
            if !caller.waits() {
                return Ok(false);
            }
            // The group in which the others still train may have had a longer step meanwhile.
            if self.arrival_timeout.is_over() && !self.arrival_timeout.learn(root)? {
                return Err(Failure::PeerLost(format!(
                    "{num_arrived} of {world_size} ranks came to generation {} in {} s",
                    self.generation,
                    self.arrival_timeout.seconds()
                )));
            }
            std::thread::sleep(pause);
            num_arrived = store.add(ARRIVED, 0)?;
        }
        let sums = (store.add(PROTOCOLS, 0)?, store.add(SQUARES, 0)?);
        if sums == (world_size * protocol, world_size * protocol * protocol) {
            return Ok(true);
        }
        self.find_other(store).map(|()| true)
    }

    /// Finds a rank with another protocol.
    fn find_other(&self, store: &N::Store) -> Result<(), Failure> {
        for other_rank in 0..self.world_size {
            let written = store.add(&protocol_of(other_rank), 0)?;
            let other = u32::try_from(written).unwrap_or_default().max(1);
            if other != self.protocol {
                return Err(Failure::OtherProtocol {
                    generation: self.generation,
                    rank: self.rank,
                    protocol: self.protocol,
                    other_rank,
                    other,
                });
            }
        }
        Ok(())
    }
}

fn protocol_of(rank: u32) -> String {
    format!("{PROTOCOL_OF_RANK}{rank}")
}

/// Pause between two requests: all ranks use one store, so more ranks ask less often.
fn pause_between_looks(world_size: u32) -> Duration {
    PAUSE_PER_RANK
        .saturating_mul(world_size)
        .clamp(SHORTEST_PAUSE, PAUSE)
}

#[cfg(test)]
mod tests {
    use super::super::memory::Memory;
    use super::*;
    use crate::blocking::{self, Waited};

    /// Results of ranks with these protocols.
    fn gathered(protocols: &[u32]) -> Vec<Result<bool, Failure>> {
        let store_timeout = Duration::from_secs(10);
        let network = Memory::default();
        let master = Master {
            address: "host".to_owned(),
            port: 1,
        };
        let ranks = protocols.iter().zip(0..).map(|(protocol, rank)| Gathering {
            rank,
            network: network.clone(),
            part: part_name(3, ""),
            master: master.clone(),
            generation: 3,
            world_size: u32::try_from(protocols.len()).unwrap(),
            protocol: *protocol,
            store_timeout,
            arrival_timeout: ArrivalTimeout::begin(),
        });
        let ranks = ranks.map(|rank| {
            std::thread::spawn(move || {
                let deadline = std::time::Instant::now() + Duration::from_secs(60);
                let hold = move |caller: &Caller| rank.hold(caller);
                match blocking::call("gathering", move || deadline, || false, hold).unwrap() {
                    Waited::Returned(store) => store.map(|store| store.is_some()),
                    Waited::Pointless | Waited::TooLate => panic!("no rank came"),
                }
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    #[test]
    fn ranks_of_two_protocols_fail_and_name_both() {
        let same = gathered(&[2, 2, 2]);
        assert!(same.iter().all(|it| matches!(it, Ok(true))), "{same:?}");
        let others = [2, 3, 2];
        // The sum alone is that of three times 2.
        let mixed = gathered(&[2, 1, 3]);
        assert!(mixed.iter().all(Result::is_err), "{mixed:?}");
        for (own, result) in others.into_iter().zip(gathered(&others)) {
            let failure = result.unwrap_err();
            let words = failure.to_string();
            let (other, other_rank) = if own == 2 { (3, 1) } else { (2, 0) };
            for part in [
                "generation 3",
                "image",
                &format!("protocol {own}"),
                &format!("rank {other_rank} has protocol {other}"),
            ] {
                assert!(words.contains(part), "{part}: {words}");
            }
            assert!(failure.exit_code().is_permanent(), "{words}");
        }
    }

    /// A rank of protocol 1 only adds 1 to the sum.
    #[test]
    fn rank_of_protocol_1_is_named() {
        let network = Memory::default();
        let part = network.serve(1).part(&part_name(3, "")).unwrap();
        part.add(PROTOCOLS, 1).unwrap();
        part.add(ARRIVED, 1).unwrap();
        let gathering = Gathering {
            network: network.clone(),
            master: Master {
                address: "host".to_owned(),
                port: 1,
            },
            part: part_name(3, ""),
            generation: 3,
            rank: 1,
            world_size: 2,
            protocol: 2,
            store_timeout: Duration::from_secs(10),
            arrival_timeout: ArrivalTimeout::begin(),
        };
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let hold = move |caller: &Caller| gathering.hold(caller);
        let waited = blocking::call("gathering", move || deadline, || false, hold).unwrap();
        let Waited::Returned(Err(failure)) = waited else {
            panic!("{waited:?}")
        };
        let words = failure.to_string();
        assert!(words.contains("rank 0 has protocol 1"), "{words}");
    }

    /// A change of the numbers that ranks sum is a change of the protocol: raise it, and change
    /// this row with it.
    #[test]
    fn the_numbers_that_ranks_exchange_belong_to_one_protocol() {
        let step = crate::world::Packing::new(0, 2).num_numbers();
        assert_eq!(
            (super::super::PROTOCOL, crate::world::state::NUM_SLOTS, step),
            (9, 23, 19)
        );
    }

    #[test]
    fn rank_without_the_nonce_meets_no_rank() {
        let store = Memory::default().serve(1);
        let arrives = |nonce| {
            let part = part_name(3, nonce);
            store.part(&part).unwrap().add(ARRIVED, 1).unwrap();
            num_arrived(&store, &part).unwrap()
        };
        assert_eq!(arrives("5f0c"), 1);
        assert_eq!(arrives("5f0d"), 1);
        // Operators of earlier versions send no nonce.
        assert_eq!(arrives(""), 1);
        assert_eq!(arrives("5f0c"), 2);
    }

    #[test]
    fn poll_interval_grows_with_the_world() {
        assert_eq!(pause_between_looks(2), SHORTEST_PAUSE);
        assert_eq!(pause_between_looks(100), Duration::from_millis(10));
        assert_eq!(pause_between_looks(u32::MAX), PAUSE);
    }
}
