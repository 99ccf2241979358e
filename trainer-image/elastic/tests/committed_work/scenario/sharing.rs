//! The state goes to the members that lack it, unless the sender or a connection is lost.

use roundhouse_elastic::saving::continued;
use roundhouse_elastic::state::StateSource;
use roundhouse_elastic::{Claim, Digest, Head, Origin};

use super::{Scenario, Violation};
use crate::Rule;
use crate::process::Process;

impl Scenario {
    pub(super) fn share(
        &mut self,
        members: &[usize],
        source: &StateSource,
        claims: &[Claim],
        generation: u64,
    ) -> Result<(), Violation> {
        let head = self.head_of(members, source);
        self.continue_save(members, claims, &source.claim, head, generation)?;
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
            // A connection or the sender is lost when some ranks have the whole state. The others
            // have a part of it.
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

    /// The members' saves in flight become saves of this generation, or are abandoned.
    fn continue_save(
        &mut self,
        members: &[usize],
        claims: &[Claim],
        agreed: &Claim,
        head: Head,
        generation: u64,
    ) -> Result<(), Violation> {
        let carried: Vec<_> = members
            .iter()
            .map(|index| self.processes[*index].carried)
            .collect();
        let agreed = if self.has(Rule::History) {
            *agreed
        } else {
            Claim {
                generation: claims[0].generation,
                ..*agreed
            }
        };
        let continued = continued(&carried, &claims[0], &agreed);
        for index in members {
            let own = &mut self.processes[*index].carried;
            *own = own.filter(|own| Some(*own) == continued);
        }
        let nonce = self.nonce;
        let late = self.late.iter_mut();
        let Some(late) = late.rev().find(|late| Some(late.save) == continued) else {
            return Ok(());
        };
        (late.generation, late.nonce) = (generation, nonce);
        let saved = late.head.hash;
        if self.was_restored || self.comes_after(saved, head) {
            return Ok(());
        }
        Err(Violation::OtherHistory)
    }

    /// Whether a state equals `saved` or comes after it.
    fn comes_after(&self, saved: Digest, head: Head) -> bool {
        let mut states = std::iter::successors(Some(head.hash), |at| self.former.get(at).copied());
        states.any(|state| state == saved)
    }
}
