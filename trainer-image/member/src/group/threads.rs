//! Groups whose ranks are threads of one process, for tests. A rank can be lost at a collective of
//! its choice, as if its process had been killed there: its peers get an error from that collective
//! and from all later ones.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use roundhouse_elastic::Place;

use super::{Abort, Group, Meanwhile, Rendezvous};
use crate::failure::Failure;

/// Values of the ranks in one collective.
type Values = HashMap<u32, Vec<u8>>;

#[derive(Debug, Default)]
struct Table {
    /// Values by the number of the collective.
    calls: HashMap<u64, Values>,
    /// Messages in transit, by sender and receiver.
    sent: HashMap<(u32, u32), VecDeque<Vec<u8>>>,
    /// Bytes that each rank has sent and received, without collectives.
    moved: HashMap<u32, usize>,
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

/// A rank of a group of threads.
#[derive(Debug)]
pub(crate) struct Threads {
    shared: Arc<Shared>,
    rank: u32,
    size: u32,
    num_collectives: Mutex<u64>,
    num_calls: Mutex<u64>,
    /// Number of the call, from 1, in which this rank is lost.
    lost_at: Option<u64>,
    is_aborted: AtomicBool,
    is_shut: AtomicBool,
}

impl Threads {
    /// Creates a group of `size` ranks. `lost` names ranks with the number of their call, from 1,
    /// in which they are lost.
    pub(crate) fn group(size: u32, lost: &[(u32, u64)]) -> Vec<Self> {
        let shared = Arc::new(Shared::default());
        let rank = |rank| Self {
            shared: Arc::clone(&shared),
            rank,
            size,
            num_collectives: Mutex::new(0),
            num_calls: Mutex::new(0),
            lost_at: lost
                .iter()
                .find_map(|(who, call)| (*who == rank).then_some(*call)),
            is_aborted: AtomicBool::new(false),
            is_shut: AtomicBool::new(false),
        };
        (0..size).map(rank).collect()
    }

    fn lost(&self) -> Failure {
        Failure::PeerLost(format!("rank {} of threads", self.rank))
    }

    /// Counts a call. Breaks the group in the call in which this rank is lost.
    fn call(&self) -> Result<(), Failure> {
        let mut num_calls = self.num_calls.lock().unwrap();
        *num_calls += 1;
        if self.lost_at.is_some_and(|lost_at| *num_calls >= lost_at) {
            self.abort();
            return Err(self.lost());
        }
        Ok(())
    }

    /// Contributes `bytes` to the next collective and returns the values of all ranks.
    fn gather_all(&self, bytes: Vec<u8>) -> Result<Values, Failure> {
        self.call()?;
        let call = {
            let mut num_collectives = self.num_collectives.lock().unwrap();
            *num_collectives += 1;
            *num_collectives
        };
        let mut table = self.shared.table();
        table
            .calls
            .entry(call)
            .or_default()
            .insert(self.rank, bytes);
        self.shared.changed.notify_all();
        loop {
            // Values of all ranks have arrived, whatever happens to a rank afterwards.
            if let Some(values) = table.calls.get(&call)
                && values.len() == self.size as usize
            {
                return Ok(values.clone());
            }
            if table.is_broken {
                return Err(self.lost());
            }
            let waited = self.shared.changed.wait(table);
            table = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether a rank has aborted the group.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.table().is_broken
    }

    /// Counters of the group.
    pub(crate) fn counts(&self) -> Counts {
        Counts(Arc::clone(&self.shared))
    }
}

/// Numbers of bytes that ranks have sent to each other.
#[derive(Debug)]
pub(crate) struct Counts(Arc<Shared>);

impl Counts {
    /// Bytes that a rank has sent and received, without collectives.
    pub(crate) fn num_moved(&self, rank: u32) -> usize {
        self.0.table().moved.get(&rank).copied().unwrap_or_default()
    }
}

/// Like the library's groups, a group that is freed without a shutdown is aborted.
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
        let all = self.gather_all(bytes.collect())?;
        values.fill(0.0);
        for rank in 0..self.size {
            for (sum, bytes) in values.iter_mut().zip(all[&rank].chunks_exact(8)) {
                *sum += f64::from_le_bytes(bytes.try_into().unwrap());
            }
        }
        Ok(())
    }

    fn exchange(
        &self,
        send: Option<(&[u8], u32)>,
        receive: Option<(&mut [u8], u32)>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<(), Failure> {
        self.call()?;
        if let Some((bytes, to)) = send {
            let mut table = self.shared.table();
            let way = table.sent.entry((self.rank, to)).or_default();
            way.push_back(bytes.to_vec());
            *table.moved.entry(self.rank).or_default() += bytes.len();
            self.shared.changed.notify_all();
        }
        meanwhile()?;
        let Some((bytes, from)) = receive else {
            return Ok(());
        };
        let mut table = self.shared.table();
        loop {
            let way = table.sent.entry((from, self.rank)).or_default();
            // A sent message arrives, whatever happens to the sender afterwards.
            if let Some(sent) = way.pop_front() {
                bytes.copy_from_slice(&sent);
                *table.moved.entry(self.rank).or_default() += sent.len();
                return Ok(());
            }
            if table.is_broken {
                return Err(self.lost());
            }
            let waited = self.shared.changed.wait(table);
            table = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn check(&self) -> Result<(), Failure> {
        if self.is_aborted.load(Ordering::SeqCst) {
            return Err(Failure::PeerLost("the group was aborted".to_owned()));
        }
        Ok(())
    }

    fn reports_lost_peers(&self) -> bool {
        true
    }
}

/// Gives a rank the prepared groups, one for each generation that it forms.
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

    /// Runs `work` on each rank of a group, each in its own thread.
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
    fn threads_group_sums_and_exchanges() {
        let found = each(Threads::group(3, &[]), |rank| {
            let mut values = [1.0, f64::from(rank.rank())];
            rank.sum(&mut values).unwrap();
            let (before, next) = ((rank.rank() + 2) % 3, (rank.rank() + 1) % 3);
            let (own, mut came) = ([u8::try_from(rank.rank()).unwrap(); 2], [9; 2]);
            let (send, receive) = (Some((&own[..], next)), Some((&mut came[..], before)));
            rank.exchange(send, receive, &mut || Ok(())).unwrap();
            // No rank ends before the others have received its values.
            rank.barrier().unwrap();
            (values, came, rank.counts().num_moved(rank.rank()))
        });
        let expected = [2, 0, 1].map(|before| ([3.0, 3.0], [before; 2], 4));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_lost_rank_ends_the_collective_of_its_peers() {
        let found = each(Threads::group(3, &[(1, 2)]), |rank| {
            (rank.barrier().is_ok(), rank.barrier().is_ok())
        });
        assert_eq!(found, [(true, false); 3]);
    }
}
