//! Entering a generation: meet the other ranks, agree which one has the state, read it from a checkpoint if no
//! process has it, send it to those that lack it.

use std::time::{Duration, Instant};

use roundhouse_elastic::ledger::Source;
use roundhouse_elastic::{Lost, Origin, Place, StateSource};

use crate::failure::Failure;
use crate::faults::{self, Point};
use crate::group::{Group, Rendezvous};
use crate::lobby::{Peers, listen};
use crate::member::Member;
use crate::report::say_error;
use crate::share::{
    CHUNK_BYTES, Chunk, DIGEST_BYTES, Digest, Role, Share, chunks, garbled, sum_of_words,
};
use crate::state::State;
use crate::world::{Agreed, Concluded, Own, World};

mod look;
mod read;

use look::Looking;

/// While a rank waits for its peers to come.
const SIGN_OF_LIFE_INTERVAL: Duration = Duration::from_secs(10);

/// A world that is left for the next one. It is let go when the next one has spoken, because then all ranks have
/// left it, or when it turns out that there is none.
struct Former<G: Group>(Option<World<G>>);

impl<G: Group> Drop for Former<G> {
    fn drop(&mut self) {
        if let Some(world) = self.0.take() {
            world.leave();
        }
    }
}

impl<R: Rendezvous> Member<'_, R> {
    /// The same script for a first generation and for a later one. Whatever uses the former world's group is to be
    /// dropped before. Returns where the state came from; `None` when a newer generation came meanwhile.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone, [`Failure::StateLost`] when the state is, [`Failure::Fenced`] when
    /// another world has this number or a later one, and what can go wrong with a checkpoint.
    pub fn form<S: Share<R::Group>>(
        &mut self,
        place: &Place,
        state: &mut S,
    ) -> Result<Option<Origin>, Failure> {
        if let Some(keeping) = &mut self.keeping {
            keeping.leave();
        }
        let mut former = Former(self.world.take());
        if let Some(peers) = &self.peers {
            peers.interrupter.release();
        }
        self.reporter.form(place.generation);
        let Some(world) = self.meet(place)? else {
            return Ok(None);
        };
        if let Some(peers) = &self.peers {
            let group = world.shared_group();
            peers
                .interrupter
                .guard(place.generation, world.size(), group);
        }
        match self.share_state(&world, place, &mut former, state) {
            Ok(origin) => {
                if let Some(peers) = &self.peers {
                    // What is prepared for the first step counts as part of it.
                    peers.interrupter.prepares_steps();
                }
                self.world = Some(world);
                Ok(Some(origin))
            }
            Err(failure) => {
                world.abandon();
                Err(failure)
            }
        }
    }

    /// The generation is formed, and what is trained is ready: training begins in it. `origin` is what
    /// [`Self::form`] returned, `state` what is trained. If the generation before has evaluated this very state, and it
    /// is the best one, but was not saved, its save begins again.
    ///
    /// # Errors
    /// The operating system refused the thread that writes the ledger; and as [`Self::keep_best`].
    pub fn begin_training<S: State>(
        &mut self,
        place: &Place,
        origin: Origin,
        state: &S,
    ) -> Result<(), Failure> {
        self.open_ledger(place, origin)?;
        self.resume_best(state)?;
        self.reporter.join(place, self.held.mark.step);
        Ok(())
    }

    fn meet(&mut self, place: &Place) -> Result<Option<World<R::Group>>, Failure> {
        let Some(peers) = &mut self.peers else {
            return Ok(Some(World::alone()));
        };
        if place.world_size == 1 {
            return Ok(Some(World::alone()));
        }
        let Peers {
            watch,
            rendezvous,
            interrupter: _,
        } = peers;
        let (machine, leave, reporter) = (&mut self.machine, &self.leave, &mut *self.reporter);
        let mut told_at = Instant::now();
        let mut is_pointless = || {
            if told_at.elapsed() >= SIGN_OF_LIFE_INTERVAL {
                // The rendezvous has its own deadlines, which grow with the steps of the world that is waited for.
                reporter.waits();
                told_at = Instant::now();
            }
            listen(machine, watch, leave);
            machine.supersedes(place)
        };
        let group = rendezvous.meet(place, &mut is_pointless)?;
        Ok(group.map(World::of))
    }

    /// Gives the newest state to the ranks that lack it; returns where that was.
    fn share_state<S: Share<R::Group>>(
        &mut self,
        world: &World<R::Group>,
        place: &Place,
        former: &mut Former<R::Group>,
        state: &mut S,
    ) -> Result<Origin, Failure> {
        faults::point(Point::Share, world.rank(), self.held.mark.step);
        let mut looking = self.begin_look(world);
        let agreed = loop {
            let concluded = self.agree(world, place, &mut looking)?;
            drop(Former(former.0.take()));
            match concluded {
                Concluded::Continue(agreed) => {
                    if let Some(lost) = agreed.source.lost {
                        let step = agreed.source.claim.step;
                        let so = format!("training continues after step {step}");
                        say_error(&words_of(lost, &so));
                    }
                    if agreed.source.claim.origin != Origin::Loaded
                        || self.read_checkpoint(world, &agreed, state)?
                    {
                        break agreed;
                    }
                    self.search(world, place, &agreed.otherwise, &mut looking)?;
                }
                Concluded::Search(search) => self.search(world, place, &search, &mut looking)?,
                Concluded::Wait => self.wait_for_volume(&mut looking)?,
                Concluded::Lost(lost) => {
                    say_error(&words_of(lost, "no process has it any more"));
                    let Lost { generation, step } = lost;
                    return Err(Failure::StateLost { generation, step });
                }
                Concluded::Fenced {
                    newer,
                    first_generation,
                } => return Err(self.fenced(first_generation, place.generation, newer)),
                Concluded::Superseded => {
                    let words = "a rank left the generation while all waited for the volume";
                    return Err(Failure::PeerLost(words.to_owned()));
                }
            }
        };
        if let Some(keeping) = &mut self.keeping {
            keeping.count_from(agreed.first_generation);
            keeping.continue_from(source(&agreed.source));
            keeping.saver.take_over(agreed.debt);
        }
        if let Some(peers) = &self.peers {
            peers.interrupter.expect(agreed.learned);
        }
        if agreed.source.must_send {
            self.share(world, &agreed, state)?;
        }
        self.held.evaluated = agreed.evaluated;
        self.held
            .go_live(agreed.first_generation + place.generation);
        Ok(agreed.source.claim.origin)
    }

    fn agree(
        &mut self,
        world: &World<R::Group>,
        place: &Place,
        looking: &mut Looking,
    ) -> Result<Concluded, Failure> {
        let volume = self.volume(world, looking);
        let keeping = self.keeping.as_ref();
        let own = Own {
            claim: looking.claim_of(&self.held),
            is_live: self.held.claim().origin == Origin::Live,
            debt: keeping.map_or_else(Default::default, |keeping| keeping.saver.debt()),
            chain_bytes: self.held.words().len(),
            first_generation: keeping.map_or(0, crate::Keeping::first_generation),
            evaluated: self.held.evaluated,
            evaluation_counts: self.held.evaluation_counts,
            learned: self
                .peers
                .as_ref()
                .map(|peers| peers.interrupter.learned())
                .unwrap_or_default(),
            volume,
            is_superseded: looking.is_waiting() && self.is_pointless(place),
        };
        world.agree_on_state(&own, place.generation)
    }

    /// Sends the state, or receives it, or looks on.
    fn share<S: Share<R::Group>>(
        &mut self,
        world: &World<R::Group>,
        agreed: &Agreed,
        state: &mut S,
    ) -> Result<(), Failure> {
        let Some(group) = world.group() else {
            return Ok(());
        };
        let claim = agreed.source.claim;
        let source = u32::try_from(agreed.source.rank).unwrap_or_default();
        let role = self.role(world.rank() == source, agreed);
        let chunk_bytes = faults::chunk_bytes().unwrap_or(CHUNK_BYTES);
        let num_bytes = state.table()?.num_bytes();
        let mut digest = Digest::default();
        for (index, bytes) in chunks(num_bytes, chunk_bytes).enumerate() {
            let length = bytes.end - bytes.start;
            let chunk = Chunk {
                bytes,
                source,
                role,
            };
            let moved = state.move_chunk(group, &chunk)?;
            digest.add(moved.digest);
            if moved.has_changed {
                self.held.begin_to_receive(&claim);
            }
            self.state_moves(length);
            if index == 0 {
                faults::point(Point::State, world.rank(), self.held.mark.step);
            }
        }
        let mut words = match role {
            Role::Sends => self.held.words(),
            Role::Receives | Role::Keeps | Role::Compares => vec![0; agreed.chain_bytes],
        };
        if role == Role::Sends {
            digest.add(sum_of_words(&words));
            words.extend(digest.to_bytes());
        } else {
            words.resize(agreed.chain_bytes + DIGEST_BYTES, 0);
        }
        group.broadcast(&mut words, source)?;
        world.check()?;
        if role == Role::Sends {
            return Ok(());
        }
        let (words, sent) = words.split_at(agreed.chain_bytes);
        digest.add(sum_of_words(words));
        if sent != digest.to_bytes() {
            return Err(garbled());
        }
        if role == Role::Keeps {
            return Ok(());
        }
        let taken = self.held.take(words);
        taken.ok_or_else(|| Failure::Internal("a state that cannot be read".to_owned()))
    }

    /// A live state is the same wherever it is. Initial weights are compared, since they are computed by each rank;
    /// a checkpoint was read by one rank alone.
    fn role(&self, is_source: bool, agreed: &Agreed) -> Role {
        let claim = agreed.source.claim;
        match claim.origin {
            _ if is_source => Role::Sends,
            Origin::Live if self.held.claim() == claim && self.was_evaluated_as(agreed) => {
                Role::Keeps
            }
            Origin::Fresh if self.held.claim() == claim => Role::Compares,
            Origin::Live | Origin::Fresh | Origin::Loaded | Origin::Torn => Role::Receives,
        }
    }

    /// Whether what the last evaluation changed in the state is in this one, too.
    const fn was_evaluated_as(&self, agreed: &Agreed) -> bool {
        !agreed.evaluation_counts || self.held.evaluated == agreed.evaluated
    }

    fn state_moves(&mut self, num_bytes: u64) {
        if let Some(peers) = &self.peers {
            peers.interrupter.state_moves(num_bytes);
        }
        self.reporter.state_moves(num_bytes);
    }
}

/// Where the state is that the generation begins with.
fn source(agreed: &StateSource) -> Source {
    match agreed.claim.origin {
        Origin::Fresh => Source::Initial,
        Origin::Loaded => Source::Checkpoint,
        Origin::Live | Origin::Torn => Source::Rank(u32::try_from(agreed.rank).unwrap_or_default()),
    }
}

fn words_of(lost: Lost, so: &str) -> String {
    let Lost { generation, step } = lost;
    format!(
        "the state after step {step} of generation {generation} is lost, with every rank that had it; {so}"
    )
}

#[cfg(test)]
mod tests;
