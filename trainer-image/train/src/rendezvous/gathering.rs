//! The ranks of a generation gather at its store. What is asked of a store waits for its answer without a bound,
//! and a host that is stopped, or cut off, gives none, while its kernel still takes connections. So all of this
//! is for a thread that can be left behind.

use std::time::Duration;

use roundhouse_c10d::Store;
use roundhouse_contract::Master;
use roundhouse_member::blocking::Caller;
use roundhouse_member::failure::Failure;

use super::patience::Patience;
use crate::failure::lost;

/// One try to connect.
pub(super) const CONNECT_TRY: Duration = Duration::from_secs(2);
/// Between two tries.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// Between two looks at how many have come: shorter in a small world, since nobody trains meanwhile.
const PAUSE_PER_RANK: Duration = Duration::from_micros(100);
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// Counter of the ranks that have come, in the generation's part of the store.
const ARRIVED: &str = "arrived";

/// One rank's way to the store of a generation.
#[derive(Clone, Debug)]
pub(super) struct Gathering {
    pub(super) master: Master,
    pub(super) generation: u64,
    pub(super) world_size: u32,
    /// How long a key is waited for once all have come.
    pub(super) store_timeout: Duration,
    /// How long the others are waited for.
    pub(super) patience: Patience,
}

/// A generation's part of a store.
pub(super) fn part_of(store: &Store, generation: u64) -> Result<Store, Failure> {
    store.prefix(&format!("gen{generation}")).map_err(lost)
}

/// How many ranks stand at a store for a generation.
pub(super) fn num_arrived(store: &Store, generation: u64) -> Result<u32, Failure> {
    let arrived = part_of(store, generation)?.add(ARRIVED, 0).map_err(lost)?;
    Ok(u32::try_from(arrived).unwrap_or_default())
}

impl Gathering {
    /// Waits until all ranks are at the store; the generation's part of it. `None` when nobody waits for that
    /// any more.
    pub(super) fn hold(&self, caller: &Caller) -> Result<Option<Store>, Failure> {
        let Some(store) = self.connect(caller)? else {
            return Ok(None);
        };
        // The others may be slower than the connection was: NCCL's first rank loads a lot before it sets its key.
        store.set_timeout(self.store_timeout).map_err(lost)?;
        let part = part_of(&store, self.generation)?;
        Ok(self.gather(&store, &part, caller)?.then_some(part))
    }

    fn connect(&self, caller: &Caller) -> Result<Option<Store>, Failure> {
        let Master { address, port } = &self.master;
        while caller.waits() {
            match Store::connect(address, *port, CONNECT_TRY) {
                Ok(store) => return Ok(Some(store)),
                Err(error) if self.patience.is_over() => {
                    let seconds = self.patience.seconds();
                    return Err(Failure::PeerLost(format!(
                        "no rendezvous store at {address}:{port} for {seconds} s: {error}"
                    )));
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        Ok(None)
    }

    fn gather(&self, root: &Store, store: &Store, caller: &Caller) -> Result<bool, Failure> {
        let world_size = i64::from(self.world_size);
        let pause = pause_between_looks(self.world_size);
        let mut num_arrived = store.add(ARRIVED, 1).map_err(lost)?;
        self.patience.learn(root)?;
        while num_arrived < world_size {
            if !caller.waits() {
                return Ok(false);
            }
            // The world that the others still train in may have taken a longer step meanwhile.
            if self.patience.is_over() && !self.patience.learn(root)? {
                return Err(Failure::PeerLost(format!(
                    "{num_arrived} of {world_size} ranks came to generation {} in {} s",
                    self.generation,
                    self.patience.seconds()
                )));
            }
            std::thread::sleep(pause);
            num_arrived = store.add(ARRIVED, 0).map_err(lost)?;
        }
        Ok(true)
    }
}

/// All ranks ask one store, so more of them ask less often.
fn pause_between_looks(world_size: u32) -> Duration {
    PAUSE_PER_RANK
        .saturating_mul(world_size)
        .clamp(SHORTEST_PAUSE, PAUSE)
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
