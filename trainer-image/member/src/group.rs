//! What a library that connects processes has to give: a group of ranks that can be aborted, and how one is built.

use std::fmt::Debug;
use std::time::Duration;

use roundhouse_elastic::Place;

use crate::failure::Failure;

#[cfg(test)]
pub(crate) mod threads;

/// Something whose waits for peers another thread can end.
pub trait Abort: Debug + Send + Sync {
    /// Makes all collectives that wait end, and all later ones fail. From any thread. It returns when that is done;
    /// if it is called twice, the second call waits for the first and does nothing else.
    fn abort(&self);

    /// Ends it in order, when all ranks have left it and none of its collectives waits.
    fn shutdown(&self) {}

    /// Whether a collective has failed that itself does not return: one of NCCL that its watchdog has noted, or one of Gloo
    /// that waits for the rest of a message whose sender is gone. It is asked about every 50 ms, and may count.
    fn has_failed(&self) -> bool {
        false
    }
}

/// What a rank does while bytes move. It uses nothing of the group.
pub type Meanwhile<'a> = &'a mut dyn FnMut() -> Result<(), Failure>;

/// The collectives of the ranks of one generation, on values in host memory. Every rank calls the same ones in the
/// same order; each returns when this rank's part is done. [`Self::exchange`] alone is between two ranks.
pub trait Group: Abort + 'static {
    /// Rank of this process, from 0.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn size(&self) -> u32;

    /// Sums `values` over all ranks, element by element, in place. All ranks give the same number of values.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone or the group was aborted. If [`Self::reports_lost_peers`] is false,
    /// a sum may instead return garbage when a peer aborts; [`crate::World`] detects that.
    fn sum(&self, values: &mut [f64]) -> Result<(), Failure>;

    /// Sends bytes to one rank, and receives bytes from another one at the same time; one of the two may be absent. The
    /// other rank of each pair calls it for as many bytes. The rest of the group takes no part. `meanwhile` runs while the
    /// bytes move.
    ///
    /// # Errors
    /// As [`Self::sum`], and those of `meanwhile`.
    fn exchange(
        &self,
        send: Option<(&[u8], u32)>,
        receive: Option<(&mut [u8], u32)>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<(), Failure>;

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// As [`Self::sum`].
    fn barrier(&self) -> Result<(), Failure> {
        self.sum(&mut [0.0])
    }

    /// Whether results that have been read are results.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] once this process has begun to abort the group.
    fn check(&self) -> Result<(), Failure>;

    /// Whether a collective that fails returns an error on every rank. NCCL's do not: they hang until the group is
    /// aborted, and then end as if all were well, with garbage.
    fn reports_lost_peers(&self) -> bool;
}

/// Builds the group of each generation.
pub trait Rendezvous: Debug {
    /// What it builds.
    type Group: Group;

    /// Meets the other ranks of `place`, of which there is at least one, and connects to them. `None` when
    /// `is_pointless`, which it asks now and then, became true before; what blocks then is left behind.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank did not come, or where they meet does not answer.
    fn meet(
        &self,
        place: &Place,
        is_pointless: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self::Group>, Failure>;

    /// How long the longest step of the world takes that this process trains in. Ranks that wait where this process'
    /// worker lets them meet wait for so much longer, since a world leaves at the end of a step alone.
    fn publish_longest_step(&self, longest: Duration) {
        let _ = longest;
    }

    /// How many ranks wait to meet for a place whose rank 0 is in this process' worker.
    ///
    /// # Errors
    /// This process hosts no place to meet, or that does not answer.
    fn num_arrived(&self, place: &Place) -> Result<u32, Failure>;
}
