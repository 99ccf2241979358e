//! The ranks of one generation and their collectives.
//!
//! A single rank has no group; everything else is the same for it.

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
pub use state::{Agreed, Concluded, RankReport, Search};
pub use step::{RankVote, StepOutcome};

/// How long an ending process waits for peers that are in their last collective.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// This process and its peers. Each of them has the whole state, or the ranks of each replica have
/// it together.
#[derive(Debug)]
pub struct World<G> {
    rank: u32,
    size: u32,
    /// Number of consecutive ranks that share one copy of the state.
    num_shards: u32,
    group: Option<Arc<G>>,
    num_sums: AtomicU64,
}

impl<G: Group> World<G> {
    /// A single rank without a group.
    #[must_use]
    pub const fn alone() -> Self {
        Self {
            rank: 0,
            size: 1,
            num_shards: 1,
            group: None,
            num_sums: AtomicU64::new(0),
        }
    }

    #[must_use]
    pub fn of(group: G) -> Self {
        Self {
            rank: group.rank(),
            size: group.size(),
            num_shards: 1,
            group: Some(Arc::new(group)),
            num_sums: AtomicU64::new(0),
        }
    }

    /// The same ranks in replicas of `num_shards` consecutive ranks, each of which has a part of
    /// the state.
    #[must_use]
    pub fn in_replicas_of(self, num_shards: u32) -> Self {
        Self {
            num_shards: num_shards.max(1),
            ..self
        }
    }

    /// Whether this rank belongs to the replica with rank 0.
    #[must_use]
    pub const fn is_in_first_replica(&self) -> bool {
        self.rank < self.num_shards
    }

    /// Number of consecutive ranks that share one copy of the state; 1 if each rank has all of it.
    #[must_use]
    pub const fn num_shards(&self) -> u32 {
        self.num_shards
    }

    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// The group; `None` for a single rank.
    #[must_use]
    pub fn group(&self) -> Option<&G> {
        self.group.as_deref()
    }

    /// A handle of the group.
    #[must_use]
    pub fn shared(&self) -> Option<Arc<G>> {
        self.group.clone()
    }

    /// A handle of the group for the thread that may have to end a wait.
    #[must_use]
    pub fn shared_group(&self) -> Option<Arc<dyn Abort>> {
        let group = self.group.as_ref().map(Arc::clone);
        group.map(|group| group as Arc<dyn Abort>)
    }

    /// Sums numbers from 0 to 2^53 over all ranks, element by element. Numbers of either sign need
    /// a slot for each rank, to which the other ranks add 0, or [`Self::sum_signed`]. A result that
    /// is not the sum over all ranks is an error.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost.
    pub fn sum(&self, values: &[f64]) -> Result<Vec<f64>, Failure> {
        let Some(group) = &self.group else {
            return Ok(values.to_vec());
        };
        let (turn, mut numbers) = self.with_checksum(values);
        group.sum(&mut numbers)?;
        self.verify_sums(turn, &numbers)
    }

    /// Prepares a sum that the caller computes over this group. Returns the number of the sum and
    /// the values with their checksum, which this rank contributes. [`Self::verify_sums`] reads the
    /// result.
    pub fn with_checksum(&self, values: &[f64]) -> (u64, Vec<f64>) {
        let turn = self.next_turn();
        (turn, sum_checksum::append(values, turn))
    }

    /// The sums of the values that were passed to [`Self::with_checksum`].
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if they are not the sums over all ranks.
    pub fn verify_sums(&self, turn: u64, sums: &[f64]) -> Result<Vec<f64>, Failure> {
        self.check()?;
        sum_checksum::verified(sums, turn, self.size).ok_or_else(not_of_all_ranks)
    }

    /// Sums finite numbers of either sign. Positive and negative numbers are summed separately, so
    /// that the rounding of large numbers that cancel does not count as garbage.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost.
    pub fn sum_signed(&self, values: &[f64]) -> Result<Vec<f64>, Failure> {
        let apart: Vec<f64> = values.iter().copied().flat_map(halves).collect();
        let sums = self.sum(&apart)?;
        Ok(sums.chunks_exact(2).map(whole_of).collect())
    }

    /// The collective at the end of each step: the loss of all samples and the agreement of the
    /// ranks in one sum; see [`Packing`].
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost.
    pub fn end_step(&self, local_loss_sum: f64, own: &RankVote) -> Result<StepOutcome, Failure> {
        let packing = self.packing();
        let sums = self.sum(&packing.pack(own, local_loss_sum))?;
        packing.unpack(&sums).ok_or_else(|| {
            Failure::PeerLost("the outcome of a step has the wrong number of ranks".to_owned())
        })
    }

    /// How these ranks pack their votes at the end of a step.
    #[must_use]
    pub const fn packing(&self) -> Packing {
        Packing::new(self.rank, self.size)
    }

    /// Number of sums that have begun. A script's process compares it to learn whether the end of a
    /// step used a collective, so every collective of this path must be a sum.
    pub fn num_sums(&self) -> u64 {
        self.num_sums.load(Ordering::Relaxed)
    }

    /// Number of a sum that is computed elsewhere over this group. All ranks compute the same sums
    /// in the same order, so the number is the same on all of them.
    pub fn next_turn(&self) -> u64 {
        self.num_sums.fetch_add(1, Ordering::Relaxed)
    }

    /// Gathers a number from 0 to 2^53 of each rank, in order.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost.
    pub fn of_each(&self, own: f64) -> Result<Vec<f64>, Failure> {
        let mut values = vec![0.0; self.size as usize];
        values[self.rank as usize] = own;
        self.sum(&values)
    }

    /// Returns the ranks with `own` set, in order.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost.
    pub fn ranks_that(&self, own: bool) -> Result<Vec<u32>, Failure> {
        let numbers = self.of_each(f64::from(u8::from(own)))?;
        let ranks = (0..self.size).zip(numbers);
        Ok(ranks
            .filter_map(|(rank, sum)| (whole(sum) > 0).then_some(rank))
            .collect())
    }

    /// The agreement of the ranks outside of steps.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost.
    pub fn agree(&self, newest_seen: u64, leaving: bool) -> Result<Agreement, Failure> {
        let mut values = vec![0.0; 1 + self.size as usize];
        values[0] = f64::from(u8::from(leaving));
        values[1 + self.rank as usize] = newest_seen as f64;
        let sums: Vec<u64> = self.sum(&values)?.into_iter().map(whole).collect();
        Ok(Agreement::of(&sums[1..], 0, sums[0]))
    }

    /// Sums the ranks' progress of saves, between steps.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost.
    pub fn sum_saving(&self, own: &Saving) -> Result<SavingSum, Failure> {
        Ok(SavingSum::of(&self.sum(&own.to_numbers(self.rank))?))
    }

    /// Waits until all ranks have called it. It is a sum, because a barrier of NCCL only blocks the
    /// device.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost.
    pub fn barrier(&self) -> Result<(), Failure> {
        self.sum(&[0.0]).map(|_| ())
    }

    /// Aborts the group of a failed generation: ranks that still wait in a collective get an error
    /// at once. If it is being aborted already, waits for the end of that, so that the next group
    /// does not begin within it.
    pub fn abandon(self) {
        let Some(group) = self.group else { return };
        group.abort();
        let_go(group);
    }

    /// Shuts the group of a healthy generation down, in a thread, because that may wait for other
    /// ranks.
    pub fn leave(self) {
        let _ = self.shut_down();
    }

    /// Shuts the group of a healthy generation down at the end of the process. A group that is only
    /// freed is aborted, and ranks in its last collective would get garbage. The wait for a lost
    /// peer is bounded.
    pub fn leave_at_the_end(self) {
        if let Some(is_shut) = self.shut_down() {
            let _ = is_shut.recv_timeout(SHUTDOWN_TIMEOUT);
        }
    }

    /// Shuts the group down in a thread and returns a receiver of its end. Without a thread the
    /// group is dropped here.
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

    /// Fails once the group was aborted, because results of its collectives are then garbage.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if the group was aborted.
    pub fn check(&self) -> Result<(), Failure> {
        self.group.as_ref().map_or(Ok(()), |group| group.check())
    }

    /// Whether an error of a computation with collectives may come from a lost peer. Garbage makes
    /// later checks fail, so with a library that does not report lost peers any error may.
    #[must_use]
    pub fn may_have_lost_a_peer(&self) -> bool {
        let group = self.group.as_ref();
        group.is_some_and(|group| group.check().is_err() || !group.reports_lost_peers())
    }
}

/// The failure of a rank whose checksum does not confirm a sum.
#[must_use]
pub fn not_of_all_ranks() -> Failure {
    let words = "a sum is not that of all ranks: a peer is aborting the group";
    Failure::PeerLost(words.to_owned())
}

/// Splits a number into its positive and its negative half, both at least 0.
const fn halves(value: f64) -> [f64; 2] {
    [value.max(0.0), (-value).max(0.0)]
}

/// The inverse of [`halves`].
fn whole_of(halves: &[f64]) -> f64 {
    halves[0] - halves[1]
}

/// Drops a group in a thread, because its destructor waits for the library's threads. Without a
/// thread it is dropped here.
pub(crate) fn let_go<G: Abort + ?Sized + 'static>(group: Arc<G>) {
    let _ = std::thread::Builder::new()
        .name("abandoned".to_owned())
        .spawn(move || drop(group));
}

/// Rounds to a whole number. Steps and generations are far below 2^53, so a 64-bit float holds them
/// exactly.
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
