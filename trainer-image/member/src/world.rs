//! The ranks of one generation, and what they tell each other.
//!
//! A world of one has no group; everything else is the same for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use roundhouse_elastic::Agreement;

use crate::failure::Failure;
use crate::group::{Abort, Group};

pub mod packing;
pub mod saving;
pub mod since_commit;
pub mod state;
pub mod step;
mod sum_checksum;

pub use packing::Packing;
pub use saving::{Saving, SavingSum};
pub use since_commit::SinceCommit;
pub use state::{Agreed, Concluded, Own, Search};
pub use step::{RankVote, StepOutcome};

/// How long a process waits at its end for peers that are in their last collective. Without one they need a second.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// This process among its peers, each of which holds the whole state. A group of the ranks that share one copy of it would
/// stand beside `group`.
#[derive(Debug)]
pub struct World<G> {
    rank: u32,
    size: u32,
    group: Option<Arc<G>>,
    num_sums: AtomicU64,
}

impl<G: Group> World<G> {
    /// A world of one.
    #[must_use]
    pub const fn alone() -> Self {
        Self {
            rank: 0,
            size: 1,
            group: None,
            num_sums: AtomicU64::new(0),
        }
    }

    /// The ranks of a group.
    #[must_use]
    pub fn of(group: G) -> Self {
        Self {
            rank: group.rank(),
            size: group.size(),
            group: Some(Arc::new(group)),
            num_sums: AtomicU64::new(0),
        }
    }

    /// Rank of this process.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// The group; `None` in a world of one.
    #[must_use]
    pub fn group(&self) -> Option<&G> {
        self.group.as_deref()
    }

    /// A handle of the group.
    #[must_use]
    pub fn shared(&self) -> Option<Arc<G>> {
        self.group.clone()
    }

    /// A handle of the group for the thread that may have to end a wait for it.
    #[must_use]
    pub fn shared_group(&self) -> Option<Arc<dyn Abort>> {
        let group = self.group.as_ref().map(Arc::clone);
        group.map(|group| group as Arc<dyn Abort>)
    }

    /// Sums numbers from 0 to 2^53 over all ranks, element by element. Numbers of either sign have a slot for each
    /// rank, to which the others add 0, or go by [`Self::sum_signed`]. A result that is not the sum of what every rank
    /// has given is an error.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn sum(&self, values: &[f64]) -> Result<Vec<f64>, Failure> {
        let Some(group) = &self.group else {
            return Ok(values.to_vec());
        };
        let (turn, mut numbers) = self.with_checksum(values);
        group.sum(&mut numbers)?;
        self.verify_sums(turn, &numbers)
    }

    /// For a sum that the caller makes over this world's group. Returns the number of the sum, and the values with their
    /// witness, which this rank adds to it. [`Self::verify_sums`] reads the result.
    pub fn with_checksum(&self, values: &[f64]) -> (u64, Vec<f64>) {
        let turn = self.next_turn();
        (turn, sum_checksum::append(values, turn))
    }

    /// The sums of the values that [`Self::with_checksum`] was given.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when they are not those of all ranks.
    pub fn verify_sums(&self, turn: u64, sums: &[f64]) -> Result<Vec<f64>, Failure> {
        self.check()?;
        sum_checksum::verified(sums, turn, self.size).ok_or_else(not_of_all_ranks)
    }

    /// Sums finite numbers of either sign. Positive and negative ones are summed apart, so that the rounding of
    /// large numbers that cancel is not taken for garbage.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn sum_signed(&self, values: &[f64]) -> Result<Vec<f64>, Failure> {
        let apart: Vec<f64> = values.iter().copied().flat_map(halves).collect();
        let sums = self.sum(&apart)?;
        Ok(sums.chunks_exact(2).map(whole_of).collect())
    }

    /// The small collective at the end of each step: the loss of all samples, and what the ranks
    /// agree on. One sum does it all: see [`Packing`].
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn end_step(&self, local_loss_sum: f64, own: &RankVote) -> Result<StepOutcome, Failure> {
        let packing = self.packing();
        let sums = self.sum(&packing.pack(own, local_loss_sum))?;
        packing.unpack(&sums).ok_or_else(|| {
            Failure::PeerLost("the end of a step is not what the ranks have told".to_owned())
        })
    }

    /// How this world's ranks pack what they tell each other at the end of a step.
    #[must_use]
    pub const fn packing(&self) -> Packing {
        Packing::new(self.rank, self.size)
    }

    /// The number of a sum that is made elsewhere, over this world's group. All ranks make the same sums in the same
    /// order, so it is the same on all of them.
    pub fn next_turn(&self) -> u64 {
        self.num_sums.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of each rank, from 0 to 2^53, in order.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn of_each(&self, own: f64) -> Result<Vec<f64>, Failure> {
        let mut values = vec![0.0; self.size as usize];
        values[self.rank as usize] = own;
        self.sum(&values)
    }

    /// Which ranks say yes, in order.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn ranks_that(&self, own: bool) -> Result<Vec<u32>, Failure> {
        let numbers = self.of_each(f64::from(u8::from(own)))?;
        let ranks = (0..self.size).zip(numbers);
        Ok(ranks
            .filter_map(|(rank, sum)| (whole(sum) > 0).then_some(rank))
            .collect())
    }

    /// What the ranks agree on where no step ends.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn agree(&self, newest_seen: u64, leaving: bool) -> Result<Agreement, Failure> {
        let mut values = vec![0.0; 1 + self.size as usize];
        values[0] = f64::from(u8::from(leaving));
        values[1 + self.rank as usize] = newest_seen as f64;
        let sums: Vec<u64> = self.sum(&values)?.into_iter().map(whole).collect();
        Ok(Agreement::of(&sums[1..], 0, sums[0]))
    }

    /// How far all are with saving, between steps.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn sum_saving(&self, own: &Saving) -> Result<SavingSum, Failure> {
        Ok(SavingSum::of(&self.sum(&own.to_numbers(self.rank))?))
    }

    /// Waits until all ranks are here. A sum: a barrier of NCCL makes only the device wait.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn barrier(&self) -> Result<(), Failure> {
        self.sum(&[0.0]).map(|_| ())
    }

    /// Ends a world that broke: ranks that still wait in one of its collectives get an error at once. If it is
    /// being aborted already, that is waited for, so that the next group does not begin within it.
    pub fn abandon(self) {
        let Some(group) = self.group else { return };
        group.abort();
        let_go(group);
    }

    /// Leaves a world that is whole, without an abort. It may wait for other ranks, so a thread does it.
    pub fn leave(self) {
        let _ = self.shut_down();
    }

    /// Leaves a world that is whole at the end of the process. A group that is only freed is aborted, and ranks that are
    /// still in its last collective would get garbage. A peer that is lost now is not waited for any longer.
    pub fn leave_at_the_end(self) {
        if let Some(is_shut) = self.shut_down() {
            let _ = is_shut.recv_timeout(SHUTDOWN_TIMEOUT);
        }
    }

    /// Tells when the group is shut down. Without a thread the group is dropped here.
    fn shut_down(self) -> Option<Receiver<()>> {
        let group = self.group?;
        let (sender, is_shut) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("left".to_owned())
            .spawn(move || {
                group.shutdown();
                let _ = sender.send(());
                drop(group);
            });
        thread.ok().map(|_| is_shut)
    }

    /// Fails once the group was aborted: what its collectives have left is garbage then.
    ///
    /// # Errors
    /// [`Failure::PeerLost`].
    pub fn check(&self) -> Result<(), Failure> {
        self.group.as_ref().map_or(Ok(()), |group| group.check())
    }

    /// Whether an error of a computation that collectives take part in may be a lost peer's: garbage makes later
    /// checks fail, so over a library that does not tell of lost peers every error may be.
    #[must_use]
    pub fn may_have_lost_a_peer(&self) -> bool {
        let group = self.group.as_ref();
        group.is_some_and(|group| group.check().is_err() || !group.reports_lost_peers())
    }
}

/// What a rank says of a sum that its witness does not confirm.
#[must_use]
pub fn not_of_all_ranks() -> Failure {
    let words = "a sum is not that of all ranks: a peer is aborting the group";
    Failure::PeerLost(words.to_owned())
}

/// A number as its positive and its negative half, both at least 0.
const fn halves(value: f64) -> [f64; 2] {
    [value.max(0.0), (-value).max(0.0)]
}

/// The inverse of [`halves`], of two numbers.
fn whole_of(halves: &[f64]) -> f64 {
    halves[0] - halves[1]
}

/// Drops a group. Its destructor waits for the library's threads, and nobody should wait for it. Without a
/// thread it is dropped here.
pub(crate) fn let_go<G: Abort + ?Sized + 'static>(group: Arc<G>) {
    let _ = std::thread::Builder::new()
        .name("abandoned".to_owned())
        .spawn(move || drop(group));
}

/// Steps and generations stay far below 2^53, so a 64-bit float carries them exactly.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sums of whole numbers from 0 to 2^53"
)]
fn whole(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

#[cfg(test)]
mod tests;
