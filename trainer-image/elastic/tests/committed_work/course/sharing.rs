//! The state goes to the members that lack it, unless the sender or a connection is lost.

use roundhouse_elastic::Origin;
use roundhouse_elastic::state::StateSource;

use super::{Course, Violation};
use crate::Rule;
use crate::process::Process;

impl Course {
    pub(super) fn share(
        &mut self,
        members: &[usize],
        source: &StateSource,
        generation: u64,
    ) -> Result<(), Violation> {
        let head = self.head_of(members, source);
        let sender = members[source.rank];
        let claim = source.claim;
        if claim.origin == Origin::Loaded {
            if !self.answers {
                return Ok(());
            }
            // All bytes were checked before.
            self.processes[sender].stand_for(head);
        }
        let keeps = |process: &Process| {
            claim.origin == Origin::Live && process.is_live() && process.head == head
        };
        let receivers = members.iter().copied().filter(|it| *it != sender);
        let receivers: Vec<usize> = receivers
            .filter(|it| !keeps(&self.processes[*it]))
            .collect();
        let fate = if self.is_repaired { 9 } else { self.below(10) };
        match fate {
            // The sender dies before the first byte, or in the middle.
            0 if !receivers.is_empty() => {
                for index in &receivers {
                    let whole = self.processes[*index].is_live();
                    if !self.has(Rule::Torn) {
                        self.processes[*index].begin_to_receive(&claim);
                        if whole && self.processes[*index].torn.is_some() {
                            return Err(Violation::TornWithoutAByte);
                        }
                    }
                }
                self.processes[sender].is_alive = false;
                return Ok(());
            }
            1 if !receivers.is_empty() => {
                for index in &receivers {
                    self.processes[*index].begin_to_receive(&claim);
                }
                self.processes[sender].is_alive = false;
                return Ok(());
            }
            // A connection is lost, or the sender, when some ranks have all and pass it on: the others have a part.
            2 | 3 if !receivers.is_empty() => {
                let whole = self.one_of(receivers.len());
                for (at, index) in receivers.iter().enumerate() {
                    if at < whole {
                        self.processes[*index].go_live(head, generation);
                    } else {
                        self.processes[*index].begin_to_receive(&claim);
                    }
                }
                self.processes[sender].is_alive &= fate == 2;
                return Ok(());
            }
            _ => {}
        }
        for index in members {
            self.processes[*index].go_live(head, generation);
        }
        self.world = members.to_vec();
        if self.answers {
            self.ledgers.insert(generation, self.nonce);
        }
        Ok(())
    }
}
