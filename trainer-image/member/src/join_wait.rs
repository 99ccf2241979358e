//! A world that is to grow trains on until the newcomers wait where the next generation meets: a kubelet may tell a
//! newcomer seconds after the others, and no rank should stand still for that.

use std::time::Instant;

use roundhouse_elastic::Place;

use crate::group::Rendezvous;
use crate::lobby::Peers;
use crate::member::Member;

impl<R: Rendezvous> Member<'_, R> {
    /// The newest generation this process is ready for, as it tells the others at the end of a step. All
    /// change to it once the last one is ready. Its rank 0, which newcomers come to first, says so for them.
    pub fn newest_for_all(&mut self) -> u64 {
        let newest = self.machine.newest_generation();
        let (Some(next), Some(peers), Some(world)) =
            (self.machine.pending(), &self.peers, &self.world)
        else {
            return newest;
        };
        // At least so many are new; more, if somebody leaves.
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

/// If it cannot be asked, newcomers are not waited for.
fn num_arrived<R: Rendezvous>(peers: &Peers<R>, place: &Place) -> u32 {
    peers.rendezvous.num_arrived(place).unwrap_or(u32::MAX)
}
