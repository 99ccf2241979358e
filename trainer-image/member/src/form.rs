//! Forms a generation: the ranks meet, agree which one has the newest state, read it from a
//! checkpoint if no process has it, and send it to the ranks that lack it.

use std::time::{Duration, Instant};

use roundhouse_elastic::ledger::Source;
use roundhouse_elastic::state::Layout;
use roundhouse_elastic::{Claim, Event, Lost, Origin, Place, StateSource};
use roundhouse_report::{say, say_error};

use crate::failure::Failure;
use crate::faults::{self, Point};
use crate::group::{Group, Rendezvous};
use crate::interrupt::LIFE_IS_OVER;
use crate::lobby::{Peers, listen};
use crate::member::Member;
use crate::state::State;
use crate::state_broadcast::StateBroadcast;
use crate::world::{Concluded, RankReport, SinceCommit, World};

mod carry;
mod read;
mod volume_view;

use volume_view::VolumeView;

/// Interval of the progress reports of a rank that waits for its peers.
const SIGN_OF_LIFE_INTERVAL: Duration = Duration::from_secs(10);

/// The process group of the previous generation. It is shut down when the next one has exchanged
/// its first message, because then all ranks have left it, or when there is no next one.
struct Former<G: Group>(Option<World<G>>);

impl<G: Group> Drop for Former<G> {
    fn drop(&mut self) {
        if let Some(world) = self.0.take() {
            world.leave();
        }
    }
}

impl<R: Rendezvous> Member<'_, R> {
    /// Forms the first or a later generation. Drop everything that uses the former process group
    /// before this call. Returns where the state came from; `None` if a newer generation came
    /// meanwhile.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost, [`Failure::StateLost`] if the state is,
    /// [`Failure::Fenced`] if another process group has written with this generation or a later
    /// one, and the errors of loading a checkpoint.
    pub fn form<S: StateBroadcast<R::Group>>(
        &mut self,
        place: &Place,
        state: &mut S,
    ) -> Result<Option<Origin>, Failure> {
        if let Some(checkpointing) = &mut self.checkpointing {
            checkpointing.leave();
        }
        let mut former = Former(self.world.take());
        if let Some(peers) = &self.peers {
            peers.interrupter.release();
        }
        self.reporter.form(place.generation);
        if let Some(copies) = self.copies() {
            copies.set_member(true);
        }
        self.restore_copy(state)?;
        let Some(world) = self.meet(place)? else {
            return Ok(None);
        };
        let num_shards = state.layout().map_or(1, Layout::num_shards);
        let world = world.in_replicas_of(num_shards);
        if let Some(peers) = &self.peers {
            let group = world.shared_group();
            peers
                .interrupter
                .guard(place.generation, world.size(), group);
        }
        match self.share_state(&world, place, &mut former, state) {
            Ok(origin) => {
                if let Some(peers) = &self.peers {
                    // Preparing the first step counts as part of it.
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

    /// Begins training in a formed generation. `origin` is the result of [`Self::form`], `state`
    /// the trained state. If the previous generation has evaluated this state as the best one
    /// without saving it, its save begins again.
    ///
    /// # Errors
    /// [`Failure::Internal`] if the operating system refuses the ledger thread, and the errors of
    /// [`Self::keep_best`].
    pub fn begin_training<S: State>(
        &mut self,
        place: &Place,
        origin: Origin,
        state: &S,
    ) -> Result<(), Failure> {
        self.open_ledger(place, origin)?;
        self.resume_best(state)?;
        self.reporter.join(place, self.local_state.position.step);
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
            interrupter,
        } = peers;
        let (machine, leave, reporter) = (&mut self.machine, &self.leave, &mut *self.reporter);
        let mut reported_at = Instant::now();
        let mut is_pointless = || {
            if reported_at.elapsed() >= SIGN_OF_LIFE_INTERVAL {
                // The rendezvous has its own deadlines, which grow with the step time of the group
                // that it waits for.
                reporter.waits();
                reported_at = Instant::now();
            }
            listen(machine, watch, leave);
            machine.supersedes(place) || interrupter.is_life_over()
        };
        let group = rendezvous.meet(place, &mut is_pointless)?;
        if interrupter.is_life_over() {
            return Err(Failure::ReplicaLost(LIFE_IS_OVER.to_owned()));
        }
        Ok(group.map(World::of))
    }

    /// Sends the newest state to the ranks that lack it. Returns where the state was.
    fn share_state<S: StateBroadcast<R::Group>>(
        &mut self,
        world: &World<R::Group>,
        place: &Place,
        former: &mut Former<R::Group>,
        state: &mut S,
    ) -> Result<Origin, Failure> {
        faults::point(Point::Share, world.rank(), self.local_state.position.step);
        let mut volume_view = self.begin_volume_view(world);
        let state_bytes = state.num_own_bytes()?;
        let mut tries_copies = true;
        let agreed = loop {
            let concluded = self.agree(world, place, &mut volume_view, state_bytes)?;
            drop(Former(former.0.take()));
            match concluded {
                Concluded::Continue(agreed) => {
                    if let Some(lost) = agreed.source.lost {
                        let step = agreed.source.claim.step;
                        let consequence = format!("training continues after step {step}");
                        say_error(&words_of(lost, &consequence));
                    }
                    if agreed.source.claim.origin != Origin::Loaded
                        || self.read_checkpoint(world, &agreed, state)?
                    {
                        report_source(world.rank(), &agreed.source);
                        break agreed;
                    }
                    if !self.keeps_copies() {
                        self.search(world, place, &agreed.otherwise, &mut volume_view)?;
                        continue;
                    }
                    // A copy may be newer than the next checkpoint.
                    self.restore_copy(state)?;
                    volume_view.search_again();
                }
                Concluded::Search(search) => {
                    self.search(world, place, &search, &mut volume_view)?
                }
                Concluded::Wait => self.wait_for_volume(&mut volume_view)?,
                Concluded::Lost(_) if tries_copies => {
                    tries_copies = false;
                    self.restore_older_copy(state)?;
                }
                Concluded::Lost(lost) => {
                    say_error(&words_of(lost, "no process has it"));
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
        if let Some(checkpointing) = &mut self.checkpointing {
            checkpointing.count_from(agreed.first_generation);
            checkpointing.continue_from(source(&agreed.source));
            checkpointing.continue_save(agreed.continued);
            checkpointing.saver.take_over(agreed.debt);
        }
        if let Some(peers) = &self.peers {
            peers.interrupter.expect(agreed.estimate);
        }
        if agreed.source.must_send {
            self.broadcast(world, &agreed, state)?;
        }
        self.local_state.evaluated = agreed.evaluated;
        self.local_state
            .go_live(agreed.first_generation + place.generation);
        // Record this now: the ranks that sent the state may be lost before the generation has
        // formed.
        self.machine.apply(Event::HasState);
        self.reporter.set_step(self.local_state.position.step);
        if agreed.source.must_send {
            faults::point(
                Point::Received,
                world.rank(),
                self.local_state.position.step,
            );
            // Ranks that do not receive wait here for those that do. A rank that gets here has the
            // whole state.
            world.barrier()?;
        }
        faults::lose(Point::Formed, world.rank(), place.generation)?;
        Ok(agreed.source.claim.origin)
    }

    fn agree(
        &mut self,
        world: &World<R::Group>,
        place: &Place,
        volume_view: &mut VolumeView,
        state_bytes: u64,
    ) -> Result<Concluded, Failure> {
        let volume = self.volume(world, volume_view);
        let checkpointing = self.checkpointing.as_ref();
        let own = RankReport {
            claim: volume_view.claim_of(&self.local_state),
            is_live: self.local_state.claim().origin.is_in_memory(),
            debt: checkpointing
                .map_or_else(Default::default, |checkpointing| checkpointing.saver.debt()),
            carried: checkpointing.and_then(|checkpointing| checkpointing.saver.carried()),
            chain_bytes: self.local_state.words().len(),
            first_generation: checkpointing.map_or(0, crate::Checkpointing::first_generation),
            since_commit: SinceCommit {
                evaluated: self.local_state.evaluated,
                evaluation_counts: self.local_state.evaluation_counts,
                is_cut_short: self.local_state.is_cut_short,
            },
            estimate: self
                .peers
                .as_ref()
                .map(|peers| peers.interrupter.estimate())
                .unwrap_or_default(),
            volume,
            is_superseded: volume_view.is_waiting() && self.is_pointless(place),
            state_bytes,
        };
        world.agree_on_state(&own, place.generation, place.procs_per_worker)
    }
}

/// Says that training continues from a local copy: on the rank that has it.
fn report_source(rank: u32, source: &StateSource) {
    let Claim {
        origin,
        generation,
        step,
        hash: _,
    } = source.claim;
    if origin == Origin::Held && rank as usize == source.rank {
        say(&format!(
            "training continues from the local copy of step {step} of generation {generation}"
        ));
    }
}

/// Source of the state that the generation starts with.
fn source(agreed: &StateSource) -> Source {
    match agreed.claim.origin {
        Origin::Fresh => Source::Initial,
        Origin::Loaded => Source::Checkpoint,
        Origin::Held | Origin::Live | Origin::Torn => {
            Source::Rank(u32::try_from(agreed.rank).unwrap_or_default())
        }
    }
}

fn words_of(lost: Lost, consequence: &str) -> String {
    let Lost { generation, step } = lost;
    format!(
        "the state after step {step} of generation {generation} is lost, with every rank that had it; {consequence}"
    )
}

#[cfg(test)]
mod tests;
