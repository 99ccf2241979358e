//! Groups whose ranks are threads of one process, for tests. A rank can be lost at a collective of its choice, as if
//! its process had been killed there: its peers get an error from that collective and from all later ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use roundhouse_elastic::Place;

use super::{Abort, Group, Rendezvous};
use crate::failure::Failure;

/// What the ranks have said in one collective.
type Said = HashMap<u32, Vec<u8>>;

#[derive(Debug, Default)]
struct Table {
    /// By the number of the collective.
    calls: HashMap<u64, Said>,
    is_broken: bool,
}

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    changed: Condvar,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank of a group.
#[derive(Debug)]
pub(crate) struct Threads {
    shared: Arc<Shared>,
    rank: u32,
    size: u32,
    num_calls: Mutex<u64>,
    /// The collective, from 1, in which this rank is lost.
    lost_at: Option<u64>,
    num_broadcast: Mutex<usize>,
    is_aborted: AtomicBool,
    is_shut: AtomicBool,
}

impl Threads {
    /// A group of so many ranks. Some are lost: rank, and number of the collective, from 1.
    pub(crate) fn group(size: u32, lost: &[(u32, u64)]) -> Vec<Self> {
        let shared = Arc::new(Shared::default());
        let rank = |rank| Self {
            shared: Arc::clone(&shared),
            rank,
            size,
            num_calls: Mutex::new(0),
            lost_at: lost
                .iter()
                .find_map(|(who, call)| (*who == rank).then_some(*call)),
            num_broadcast: Mutex::new(0),
            is_aborted: AtomicBool::new(false),
            is_shut: AtomicBool::new(false),
        };
        (0..size).map(rank).collect()
    }

    /// Says `bytes` in the next collective, and hears what all ranks have said in it.
    fn exchange(&self, bytes: Vec<u8>) -> Result<Said, Failure> {
        let call = {
            let mut num_calls = self.num_calls.lock().unwrap();
            *num_calls += 1;
            *num_calls
        };
        let lost = || Failure::PeerLost(format!("rank {} of threads", self.rank));
        if self.lost_at.is_some_and(|lost_at| call >= lost_at) {
            self.abort();
            return Err(lost());
        }
        let mut table = self.shared.table();
        table
            .calls
            .entry(call)
            .or_default()
            .insert(self.rank, bytes);
        self.shared.changed.notify_all();
        loop {
            // What all have said has come, whatever happens to one of them afterwards.
            if let Some(said) = table.calls.get(&call)
                && said.len() == self.size as usize
            {
                return Ok(said.clone());
            }
            if table.is_broken {
                return Err(lost());
            }
            let waited = self.shared.changed.wait(table);
            table = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether a rank has aborted it.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.table().is_broken
    }

    /// Bytes of its broadcasts.
    pub(crate) fn num_broadcast(&self) -> usize {
        *self.num_broadcast.lock().unwrap()
    }
}

/// As the library's, a group that is freed without a shutdown is aborted.
impl Drop for Threads {
    fn drop(&mut self) {
        if !self.is_shut.load(Ordering::SeqCst) {
            self.abort();
        }
    }
}

impl Abort for Threads {
    fn abort(&self) {
        self.is_aborted.store(true, Ordering::SeqCst);
        self.shared.table().is_broken = true;
        self.shared.changed.notify_all();
    }

    fn shutdown(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
    }
}

impl Group for Threads {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn sum(&self, values: &mut [f64]) -> Result<(), Failure> {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        let said = self.exchange(bytes.collect())?;
        values.fill(0.0);
        for rank in 0..self.size {
            for (sum, bytes) in values.iter_mut().zip(said[&rank].chunks_exact(8)) {
                *sum += f64::from_le_bytes(bytes.try_into().unwrap());
            }
        }
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8], source: u32) -> Result<(), Failure> {
        *self.num_broadcast.lock().unwrap() += bytes.len();
        let own = (self.rank == source).then(|| bytes.to_vec());
        let said = self.exchange(own.unwrap_or_default())?;
        bytes.copy_from_slice(&said[&source]);
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        if self.is_aborted.load(Ordering::SeqCst) {
            return Err(Failure::PeerLost("the group was aborted".to_owned()));
        }
        Ok(())
    }

    fn tells_lost_peers(&self) -> bool {
        true
    }
}

/// Hands a rank the groups that were made for it, one for each generation that it forms.
#[derive(Debug, Default)]
pub(crate) struct Made(Mutex<Vec<Threads>>);

impl Made {
    pub(crate) fn give(&self, group: Threads) {
        self.0.lock().unwrap().push(group);
    }
}

impl Rendezvous for Made {
    type Group = Threads;

    fn meet(&self, _: &Place, _: &mut dyn FnMut() -> bool) -> Result<Option<Threads>, Failure> {
        Ok(self.0.lock().unwrap().pop())
    }

    fn num_arrived(&self, _: &Place) -> Result<u32, Failure> {
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each rank of a group gets, each in a thread of its own.
    fn each<T: Send>(group: Vec<Threads>, work: impl Fn(&Threads) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let ranks: Vec<_> = group
                .into_iter()
                .map(|rank| {
                    scope.spawn(|| {
                        let rank = rank;
                        work(&rank)
                    })
                })
                .collect();
            ranks.into_iter().map(|it| it.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_get_the_same_sum_and_the_source_s_bytes() {
        let found = each(Threads::group(3, &[]), |rank| {
            let mut values = [1.0, f64::from(rank.rank())];
            rank.sum(&mut values).unwrap();
            let mut bytes = [u8::try_from(rank.rank()).unwrap(); 2];
            rank.broadcast(&mut bytes, 1).unwrap();
            // So that none ends before another has heard.
            rank.barrier().unwrap();
            (values, bytes)
        });
        assert_eq!(found, vec![([3.0, 3.0], [1, 1]); 3]);
    }

    #[test]
    fn a_lost_rank_ends_the_collective_of_its_peers() {
        let found = each(Threads::group(3, &[(1, 2)]), |rank| {
            (rank.barrier().is_ok(), rank.barrier().is_ok())
        });
        assert_eq!(found, [(true, false); 3]);
    }
}
