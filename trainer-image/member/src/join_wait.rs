//! Lets the current ranks keep training until the joining ranks wait at the store of the next
//! generation. A kubelet may deliver the membership to a new worker seconds later than to the
//! others, and no rank should stand still for that time.

use std::time::Instant;

use roundhouse_elastic::Place;

use crate::group::Rendezvous;
use crate::lobby::Peers;
use crate::member::Member;

impl<R: Rendezvous> Member<'_, R> {
    /// The newest generation that this process is ready for, as it reports at the end of a step.
    /// All ranks change to it once the last one is ready. The next generation's rank 0, whose store
    /// the joining ranks contact first, reports on their behalf.
    pub fn newest_for_all(&mut self) -> u64 {
        let newest = self.machine.newest_generation();
        let (Some(next), Some(peers), Some(world)) =
            (self.machine.pending(), &self.peers, &self.world)
        else {
            return newest;
        };
        // Lower bound of the joining ranks. There are more if some ranks leave.
        let num_new = next.world_size.saturating_sub(world.size());
        if next.rank != 0 || num_new == 0 || num_arrived(peers, next) >= num_new {
            return newest;
        }
        let current = self.machine.current_generation().unwrap_or(newest);
        let (generation, step) = (next.generation, peers.interrupter.longest_step());
        if self
            .join_wait
            .is_patience_over(generation, step, Instant::now())
        {
            newest
        } else {
            current
        }
    }
}

/// Number of ranks at the store. If the store does not answer, there is no wait for joining ranks.
fn num_arrived<R: Rendezvous>(peers: &Peers<R>, place: &Place) -> u32 {
    peers.rendezvous.num_arrived(place).unwrap_or(u32::MAX)
}
