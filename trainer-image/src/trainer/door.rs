//! A world that is to grow trains on until those who join stand at the door of the next generation: a
//! kubelet may tell the newcomer seconds after the others, and nobody should wait for that.

use std::time::Instant;

use super::{Peers, Trainer};

impl Trainer<'_> {
    /// The newest generation this process is ready for, as the others are told at the end of a step. All
    /// change to it once the last says so; here its rank 0, which has the store, speaks for the newcomers.
    pub(super) fn newest_for_all(&mut self) -> u64 {
        let newest = self.machine.newest_generation();
        let (Some(next), Some(peers), Some(replicas)) =
            (self.machine.pending(), &self.peers, &self.replicas)
        else {
            return newest;
        };
        // At least so many are new; more, if somebody leaves.
        let num_new = next.world_size.saturating_sub(replicas.world().size());
        if next.rank != 0 || num_new == 0 || num_arrived(peers, next.generation) >= num_new {
            return newest;
        }
        let current = self.machine.current_generation().unwrap_or(newest);
        let (generation, step) = (next.generation, peers.interrupter.longest_step());
        if self.door.is_patience_over(generation, step, Instant::now()) {
            newest
        } else {
            current
        }
    }
}

/// A store that cannot be asked keeps nobody.
fn num_arrived(peers: &Peers, generation: u64) -> u32 {
    peers.rendezvous.num_arrived(generation).unwrap_or(u32::MAX)
}
