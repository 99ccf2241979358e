//! Sends the state along the routes of a generation
//! ([`Routes`](roundhouse_elastic::state::Routes)).
//!
//! A rank forwards the last chunk while it receives the next one, and meanwhile writes the last one
//! to its own state. The rank with the state packs the next chunk while it sends the last one.
//! Ranks on no route move nothing. They wait in the barrier that ends each round of chunks: so they
//! know that the others make progress, and a lost peer ends their wait too.

use std::ops::Range;

use roundhouse_elastic::Origin;
use roundhouse_elastic::state::Hop;

use crate::failure::Failure;
use crate::faults::{self, Point};
use crate::group::{Group, Rendezvous};
use crate::member::Member;
use crate::state_broadcast::{
    CHUNK_BYTES, DIGEST_BYTES, Digest, StateBroadcast, chunks, garbled, sum_of_words,
};
use crate::world::{Agreed, World};

/// Minimum number of chunks in a round. A slow link can move this many within the timeout of the
/// barrier in which other ranks wait.
const CHUNKS_OF_A_ROUND: usize = 16;
/// Minimum number of chunks in a round for each rank of the longest chain. At the end of a round no
/// rank holds a chunk, and each rank of a chain begins one chunk later than the rank before it.
const CHUNKS_PER_HOP: usize = 2;

impl<R: Rendezvous> Member<'_, R> {
    /// Sends the state, receives it, forwards it, or waits for the ranks that do.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost, [`Failure::State`] if bytes cannot be copied.
    pub(super) fn broadcast<S: StateBroadcast<R::Group>>(
        &mut self,
        world: &World<R::Group>,
        agreed: &Agreed,
        state: &mut S,
    ) -> Result<(), Failure> {
        let Some(group) = world.group() else {
            return Ok(());
        };
        let claim = agreed.source.claim;
        let compares = claim.origin == Origin::Fresh && self.local_state.claim() == claim;
        let chunk_bytes = faults::chunk_bytes().unwrap_or(CHUNK_BYTES);
        let chunks: Vec<_> = chunks(state.num_own_bytes()?, chunk_bytes).collect();
        let hop = agreed.routes.hop(world.rank() as usize).map(Link::of);
        let mut carrier = hop.map(|link| Carrier {
            group,
            state,
            link,
            compares,
            digest: Digest::default(),
            last: None,
            has_written: false,
        });
        let per_round = CHUNKS_OF_A_ROUND.max(CHUNKS_PER_HOP * agreed.routes.longest());
        // Shards differ in size, and all ranks make the same number of rounds.
        let most_chunks = usize::try_from(agreed.most_bytes.div_ceil(chunk_bytes.max(1)));
        let num_rounds = most_chunks.unwrap_or(usize::MAX).div_ceil(per_round);
        let mut of_rounds = chunks.chunks(per_round);
        for round in 0..num_rounds {
            if round > 0 {
                world.barrier()?;
                self.round_ends();
            }
            let (Some(carrier), Some(chunks)) = (&mut carrier, of_rounds.next()) else {
                continue;
            };
            let all = chunks.iter().cloned().map(Some).chain([None]);
            for (index, next) in all.enumerate() {
                let num_bytes = carrier.last_length();
                let moved = carrier.step(next);
                if carrier.has_written {
                    self.local_state.begin_to_receive(&claim);
                }
                moved?;
                self.reporter.state_moves(num_bytes);
                if round == 0 && index == 1 {
                    faults::point(Point::State, world.rank(), self.local_state.position.step);
                }
            }
        }
        let Some(Carrier { link, digest, .. }) = carrier else {
            return Ok(());
        };
        self.pass_words(group, link, digest, agreed.chain_bytes)
    }

    /// Exchanges the position, scores and ledger lines that belong to the state, and the digest of
    /// everything.
    fn pass_words(
        &mut self,
        group: &R::Group,
        link: Link,
        mut digest: Digest,
        chain_bytes: usize,
    ) -> Result<(), Failure> {
        let Link { from, to } = link;
        let mut words = if from.is_some() {
            vec![0; chain_bytes + DIGEST_BYTES]
        } else {
            let mut words = self.local_state.words();
            digest.add(sum_of_words(&words));
            words.extend(digest.to_bytes());
            words
        };
        if let Some(from) = from {
            group.exchange(None, Some((&mut words, from)), &mut || Ok(()))?;
        }
        if let Some(to) = to {
            group.exchange(Some((&words, to)), None, &mut || Ok(()))?;
        }
        group.check()?;
        if from.is_none() {
            return Ok(());
        }
        let (words, sent) = words.split_at(chain_bytes);
        digest.add(sum_of_words(words));
        if sent != digest.to_bytes() {
            return Err(garbled());
        }
        let taken = self.local_state.take(words);
        taken.ok_or_else(|| Failure::Internal("a state that cannot be read".to_owned()))
    }

    /// Reports progress: all ranks have ended the round.
    fn round_ends(&mut self) {
        if let Some(peers) = &self.peers {
            peers.interrupter.moves();
        }
        self.reporter.waits();
    }
}

/// The previous and the next rank of this rank's route.
#[derive(Clone, Copy, Debug)]
struct Link {
    from: Option<u32>,
    to: Option<u32>,
}

impl Link {
    fn of(hop: Hop) -> Self {
        // Ranks are 32-bit numbers elsewhere.
        let rank = |rank| u32::try_from(rank).ok();
        Self {
            from: hop.from.and_then(rank),
            to: hop.to.and_then(rank),
        }
    }
}

/// A rank on a route and the chunk that it holds.
struct Carrier<'a, G: Group, S: StateBroadcast<G>> {
    group: &'a G,
    state: &'a mut S,
    link: Link,
    compares: bool,
    digest: Digest,
    /// A chunk that was packed or received. It must still be forwarded, and written if it was
    /// received.
    last: Option<(Range<u64>, S::Parcel)>,
    /// Whether bytes of this rank's state were overwritten.
    has_written: bool,
}

impl<G: Group, S: StateBroadcast<G>> Carrier<'_, G, S> {
    fn last_length(&self) -> u64 {
        let bytes = self.last.as_ref().map(|(bytes, _)| bytes);
        bytes.map_or(0, |bytes| bytes.end - bytes.start)
    }

    /// Gets the next chunk, if there is one, and completes the last one.
    fn step(&mut self, next: Option<Range<u64>>) -> Result<(), Failure> {
        let Self {
            group,
            state,
            link: Link { from, to },
            compares,
            digest,
            last,
            has_written,
        } = self;
        let mut parcel = match &next {
            Some(bytes) => Some(state.parcel(group, bytes.end - bytes.start)?),
            None => None,
        };
        let send = last.as_ref().zip(*to).map(|((_, parcel), to)| (parcel, to));
        if let Some(from) = *from {
            let receive = parcel.as_mut().map(|parcel| (parcel, from));
            let mut waits = last.as_ref();
            let mut write = || {
                let Some((bytes, parcel)) = waits.take() else {
                    return Ok(());
                };
                let opened = state.open(group, parcel, bytes, *compares)?;
                digest.add(opened.digest);
                *has_written |= opened.has_changed;
                Ok(())
            };
            let moved = move_parcels::<G, S>(group, send, receive, &mut write);
            // A received chunk is written even if the peer was lost before the next move began:
            // then this rank knows that a newer state than its own existed.
            let written = write();
            moved.and(written)?;
        } else {
            let mut pack = || {
                if let (Some(bytes), Some(parcel)) = (&next, &mut parcel) {
                    digest.add(state.pack(bytes, parcel)?);
                }
                Ok(())
            };
            move_parcels::<G, S>(group, send, None, &mut pack)?;
        }
        *last = next.zip(parcel);
        Ok(())
    }
}

fn move_parcels<G: Group, S: StateBroadcast<G>>(
    group: &G,
    send: Option<(&S::Parcel, u32)>,
    receive: Option<(&mut S::Parcel, u32)>,
    meanwhile: &mut dyn FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    if send.is_none() && receive.is_none() {
        return meanwhile();
    }
    S::exchange(group, send, receive, meanwhile)
}
