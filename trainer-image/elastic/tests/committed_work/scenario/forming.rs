//! A generation forms: its members agree on the state from which they continue.

use roundhouse_elastic::state::plan::finder;
use roundhouse_elastic::state::{Names, Plan, StateSource, Volume};
use roundhouse_elastic::{CheckpointId, Claim, Head, Origin};

use super::{Scenario, Violation, start};
use crate::Rule;

impl Scenario {
    /// The operator starts a generation of these processes.
    pub(super) fn form(&mut self, members: &[usize]) -> Result<(), Violation> {
        self.world.clear();
        if members.is_empty() {
            return Ok(());
        }
        self.generation += 1;
        self.nonce += 1;
        let generation = self.generation;
        let mut offers: Vec<Option<Claim>> = vec![None; members.len()];
        let mut has_searched = false;
        let (source, claims) = loop {
            let claims = self.claims(members, &offers);
            match self.plan(&claims, has_searched, generation) {
                Plan::Continue(source) => break (source, claims),
                Plan::Search => {
                    has_searched = true;
                    let live: Vec<bool> = members
                        .iter()
                        .map(|it| self.processes[*it].is_live())
                        .collect();
                    let at = finder(&live, &vec![true; members.len()]);
                    let found = self.newest().map_or_else(start, |(_, head)| head);
                    if live[at] {
                        offers[at] =
                            Some(self.seen(Claim::of(Origin::Loaded, &found), found.generation));
                    } else {
                        self.processes[members[at]].stand_for(found);
                    }
                }
                // Wait until the next generation, or until the end of the scenario.
                Plan::Wait => return Ok(()),
                Plan::Lost(_) => {
                    let has_it = |it: &usize| {
                        self.processes[*it].is_live() && self.processes[*it].head.step > 0
                    };
                    if members.iter().any(has_it) {
                        return Err(Violation::LostThoughThere);
                    }
                    for index in members {
                        self.processes[*index].is_alive = false;
                    }
                    return Ok(());
                }
                Plan::Fenced(newer) => {
                    // The processes exit, and the operator learns the newer number.
                    for index in members {
                        self.processes[*index].is_alive = false;
                    }
                    self.generation = self.generation.max(newer);
                    return Ok(());
                }
            }
        };
        self.check(members, &source)?;
        self.share(members, &source, &claims, generation)
    }

    fn claims(&self, members: &[usize], offers: &[Option<Claim>]) -> Vec<Claim> {
        let one = |(index, offer): (&usize, &Option<Claim>)| {
            let process = &self.processes[*index];
            let own = self.seen(process.claim(), process.generation);
            offer.map_or(own, |offer| own.max(offer))
        };
        members.iter().zip(offers).map(one).collect()
    }

    /// Without [`Rule::Head`], a claim names the last generation that formed with the state.
    fn seen(&self, claim: Claim, generation: u64) -> Claim {
        if self.has(Rule::Head) || claim.origin != Origin::Live {
            claim
        } else {
            Claim {
                generation,
                ..claim
            }
        }
    }

    fn plan(&self, claims: &[Claim], has_searched: bool, generation: u64) -> Plan {
        let is_live = StateSource::of(claims).is_ok_and(|it| it.claim.origin == Origin::Live);
        let looks = if is_live {
            Rule::LookOfLive
        } else {
            Rule::Look
        };
        let checkpoint = self
            .newest()
            .map(|(id, _)| id)
            .filter(|_| !has_searched && self.has(looks));
        let volume = match self.answers {
            true => Volume::Names(Names {
                checkpoint,
                generation: self.written(),
            }),
            false if self.has(Rule::Wait) => Volume::Silent,
            false => Volume::Absent,
        };
        match Plan::of(claims, &volume, generation) {
            Plan::Continue(_) if !self.has(Rule::Order) => Plan::Continue(by_origin(claims)),
            plan => plan,
        }
    }

    /// Checks the promise that the generation continues from the newest state of all members and
    /// of an answering volume.
    fn check(&self, members: &[usize], source: &StateSource) -> Result<(), Violation> {
        let live = members.iter().map(|it| &self.processes[*it]);
        let live = live.filter(|it| it.is_live()).map(|it| it.head);
        let saved = self.checkpoints.values().filter(|_| self.answers).copied();
        let there = live.chain(saved).map(|head| CheckpointId::of(&head));
        let head = self.head_of(members, source);
        if there
            .max()
            .is_some_and(|newest| newest > CheckpointId::of(&head))
        {
            return Err(Violation::OlderState);
        }
        if !self.answers && source.claim.origin != Origin::Live {
            return Err(Violation::SilentVolume);
        }
        Ok(())
    }

    /// Returns the state from which the generation continues: the sender's, or the checkpoint
    /// that it has found.
    pub(super) fn head_of(&self, members: &[usize], source: &StateSource) -> Head {
        let sender = &self.processes[members[source.rank]];
        if source.claim.origin == Origin::Loaded && sender.origin != Origin::Loaded {
            self.newest().map_or_else(start, |(_, head)| head)
        } else {
            sender.head
        }
    }
}

/// Orders claims so that a state in memory comes before any checkpoint.
fn by_origin(claims: &[Claim]) -> StateSource {
    let worth = |claim: &Claim| (claim.origin, claim.generation, claim.step);
    let best = claims
        .iter()
        .copied()
        .max_by_key(worth)
        .unwrap_or(Claim::FRESH);
    StateSource {
        claim: best,
        rank: claims.iter().position(|claim| *claim == best).unwrap_or(0),
        must_send: true,
        lost: None,
    }
}
