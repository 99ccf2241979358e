//! The interface to a communication library: a group of ranks that can be aborted, and how it is
//! built.

use std::fmt::Debug;
use std::time::Duration;

use roundhouse_elastic::Place;

use crate::failure::Failure;

#[cfg(test)]
pub(crate) mod threads;

/// A group whose waits for peers another thread can end.
pub trait Abort: Debug + Send + Sync {
    /// Ends all waiting collectives and makes all later ones fail. Callable from any thread.
    /// Returns when that is done; a second call only waits for the first.
    fn abort(&self);

    /// Shuts the group down after all ranks have left it and no collective waits.
    fn shutdown(&self) {}

    /// Whether a collective has failed without returning: NCCL's watchdog has noted an error, or
    /// Gloo waits for the rest of a message whose sender is gone. Called about every 50 ms, so an
    /// implementation may count calls.
    fn has_failed(&self) -> bool {
        false
    }
}

/// Work of a rank while bytes move. It must not use the group.
pub type Meanwhile<'a> = &'a mut dyn FnMut() -> Result<(), Failure>;

/// The collectives of one generation's ranks, on values in host memory. Every rank calls the same
/// collectives in the same order; each returns when this rank's part is done. Only
/// [`Self::exchange`] is between two ranks.
pub trait Group: Abort + 'static {
    /// Rank of this process, from 0.
    fn rank(&self) -> u32;

    fn size(&self) -> u32;

    /// Sums `values` over all ranks, element by element, in place. All ranks pass the same number
    /// of values.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost or the group was aborted. If
    /// [`Self::reports_lost_peers`] is false, a sum may instead return garbage when a peer aborts;
    /// [`crate::World`] detects that.
    fn sum(&self, values: &mut [f64]) -> Result<(), Failure>;

    /// Sends bytes to one rank and receives bytes from another at the same time; one of the two may
    /// be absent. The other rank of each pair calls it with the same number of bytes. The rest of
    /// the group takes no part. `meanwhile` runs while the bytes move.
    ///
    /// # Errors
    /// Those of [`Self::sum`] and of `meanwhile`.
    fn exchange(
        &self,
        send: Option<(&[u8], u32)>,
        receive: Option<(&mut [u8], u32)>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<(), Failure>;

    /// Waits until all ranks have called it.
    ///
    /// # Errors
    /// Those of [`Self::sum`].
    fn barrier(&self) -> Result<(), Failure> {
        self.sum(&mut [0.0])
    }

    /// Checks that results which were read from the group are valid.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] once this process has begun to abort the group.
    fn check(&self) -> Result<(), Failure>;

    /// Whether a failing collective returns an error on every rank. NCCL's collectives do not: they
    /// hang until the group is aborted, and then return garbage without an error.
    fn reports_lost_peers(&self) -> bool;
}

/// Builds the group of each generation.
pub trait Rendezvous: Debug {
    type Group: Group;

    /// Meets the other ranks of `place`, of which there is at least one, and connects to them.
    /// Calls `is_pointless` regularly and returns `None` once it is true; blocked calls are then
    /// abandoned.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank did not come or the meeting place does not answer.
    fn meet(
        &self,
        place: &Place,
        is_pointless: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self::Group>, Failure>;

    /// Publishes the longest step of the group in which this process trains. Ranks that wait at
    /// this worker's store extend their timeout by it, because a group can leave only at the end of
    /// a step.
    fn publish_longest_step(&self, longest: Duration) {
        let _ = longest;
    }

    /// Publishes how long the group may need for what it does beside steps, such as an evaluation;
    /// zero in a step. Ranks that wait at this worker's store extend their timeout by it.
    fn publish_time_beside_steps(&self, most: Duration) {
        let _ = most;
    }

    /// Number of ranks that wait to meet for a place whose rank 0 is in this process' worker.
    ///
    /// # Errors
    /// A failure if this process hosts no meeting place or that does not answer.
    fn num_arrived(&self, place: &Place) -> Result<u32, Failure>;
}
