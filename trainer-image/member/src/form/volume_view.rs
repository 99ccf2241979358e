//! Reads the contents of the volume while a generation forms: a process may have been in the lobby
//! or disconnected for days while others saved.

use std::time::{Duration, Instant};

use roundhouse_elastic::state::{Names, Volume};
use roundhouse_elastic::{Claim, Place};
use roundhouse_report::{say, say_error};

use crate::checkpoint::Manifest;
use crate::checkpointing::listing::Searched;
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::local_state::LocalState;
use crate::member::Member;
use crate::world::{Search, World};

use super::SIGN_OF_LIFE_INTERVAL;

/// How long rank 0 waits for the listing before the first agreement. After that, ranks with a state
/// in memory continue without it.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long rank 0 waits before each further agreement.
const NEXT_TIMEOUT: Duration = Duration::from_millis(100);
/// Interval at which the ranks ask the searching rank.
const PAUSE: Duration = Duration::from_millis(10);

/// This rank's knowledge of the volume while it forms a generation.
#[derive(Debug)]
pub(super) struct VolumeView {
    began: Instant,
    reported: Instant,
    names: Option<Names>,
    has_waited: bool,
    has_searched: bool,
    /// A checkpoint that this rank has found and that is newer than its state in memory.
    offer: Option<Claim>,
}

impl VolumeView {
    /// Makes the ranks compare their claims with the newest checkpoint once more.
    pub(super) const fn search_again(&mut self) {
        self.has_searched = false;
        self.offer = None;
    }

    /// Whether this generation has waited for the volume.
    pub(super) const fn is_waiting(&self) -> bool {
        self.has_waited
    }

    /// The better claim of this rank: its own state or the checkpoint that it has found.
    pub(super) fn claim_of(&self, local_state: &LocalState) -> Claim {
        let own = local_state.claim();
        self.offer.map_or(own, |offer| own.max(offer))
    }
}

impl<R: Rendezvous> Member<'_, R> {
    /// Begins to form a generation. Rank 0 lists the volume for all.
    pub(super) fn begin_volume_view(&mut self, world: &World<R::Group>) -> VolumeView {
        if let Some(checkpointing) = &mut self.checkpointing {
            checkpointing.directory.damaged().forget_unread();
            if world.rank() == 0 {
                checkpointing.begin_listing();
            }
        }
        let now = Instant::now();
        VolumeView {
            began: now,
            reported: now,
            names: None,
            has_waited: false,
            has_searched: false,
            offer: None,
        }
    }

    /// Returns this rank's knowledge of the volume. Rank 0 waits briefly for its listing.
    pub(super) fn volume(
        &mut self,
        world: &World<R::Group>,
        volume_view: &mut VolumeView,
    ) -> Volume {
        let Some(checkpointing) = &mut self.checkpointing else {
            return Volume::Absent;
        };
        if world.rank() != 0 {
            return Volume::Silent;
        }
        if volume_view.names.is_none() {
            let timeout = if volume_view.has_waited {
                NEXT_TIMEOUT
            } else {
                FIRST_TIMEOUT
            };
            volume_view.names = checkpointing.names(timeout);
        }
        let Some(names) = volume_view.names else {
            return Volume::Silent;
        };
        // The search is done, so the checkpoint is among the claims.
        let checkpoint = names.checkpoint.filter(|_| !volume_view.has_searched);
        Volume::Names(Names {
            checkpoint,
            ..names
        })
    }

    /// Waits because the volume has not answered and training cannot continue without it.
    pub(super) fn wait_for_volume(&mut self, volume_view: &mut VolumeView) -> Result<(), Failure> {
        volume_view.has_waited = true;
        self.forming_lives(volume_view);
        match &self.checkpointing {
            Some(checkpointing) => {
                checkpointing.check_io_timeout(volume_view.began.elapsed(), volume_view.began)
            }
            None => Ok(()),
        }
    }

    /// Lets one rank search the volume for its newest checkpoint, which it claims afterwards.
    ///
    /// # Errors
    /// On the searching rank those of [`crate::checkpoint::load::find`], unless training can
    /// continue without a checkpoint.
    pub(super) fn search(
        &mut self,
        world: &World<R::Group>,
        place: &Place,
        search: &Search,
        volume_view: &mut VolumeView,
    ) -> Result<(), Failure> {
        (volume_view.has_searched, volume_view.has_waited) = (true, true);
        volume_view.offer = None;
        let is_finder = usize::try_from(world.rank()) == Ok(search.finder);
        let checkpointing = self.checkpointing.as_ref().filter(|_| is_finder);
        let mut under_way = checkpointing
            .map(crate::Checkpointing::begin_search)
            .transpose()?;
        loop {
            let mut is_done = false;
            if let (Some(under_way), Some(checkpointing)) = (&mut under_way, &self.checkpointing) {
                let found = match checkpointing.searched(under_way, PAUSE) {
                    Err(failure @ (Failure::NoCheckpointUsable { .. } | Failure::Volume(_)))
                        if !search.must_find =>
                    {
                        say_error(&failure.to_string());
                        Searched::Done(None)
                    }
                    found => found?,
                };
                if let Searched::Done(found) = found {
                    is_done = true;
                    self.claim_found(found.map(|found| *found), volume_view);
                }
            }
            let numbers = [is_done, self.is_pointless(place)].map(|it| f64::from(u8::from(it)));
            let sums = world.sum(&numbers)?;
            self.forming_lives(volume_view);
            // If the generation is pointless, the next agreement reports that.
            if sums.iter().any(|sum| *sum > 0.0) {
                return Ok(());
            }
        }
    }

    fn claim_found(&mut self, found: Option<Manifest>, volume_view: &mut VolumeView) {
        let Some(checkpointing) = &mut self.checkpointing else {
            return;
        };
        if let Some(manifest) = &found {
            say(&format!("found {}", checkpointing.name(manifest)));
            if self.local_state.claim().origin.is_in_memory() {
                // The state in memory stays until the checkpoint's bytes overwrite it.
                volume_view.offer = Some(manifest.claim());
            } else {
                self.local_state.stand_for(manifest);
            }
        }
        checkpointing.stand_for(found);
    }

    /// Whether this rank knows a newer generation or leaves.
    pub(super) fn is_pointless(&mut self, place: &Place) -> bool {
        self.poll_inputs();
        self.machine.supersedes(place)
    }

    /// Reports progress: a collective has succeeded, so no rank hangs.
    fn forming_lives(&mut self, volume_view: &mut VolumeView) {
        if let Some(peers) = &self.peers {
            peers.interrupter.moves();
        }
        if volume_view.reported.elapsed() >= SIGN_OF_LIFE_INTERVAL {
            self.reporter.waits();
            volume_view.reported = Instant::now();
        }
    }

    /// The failure of a process whose generation, or a later one, another process group has used.
    pub(super) fn fenced(&self, first_generation: u64, generation: u64, newer: u64) -> Failure {
        let checkpointing = self.checkpointing.as_ref();
        let root = checkpointing.map(|checkpointing| checkpointing.directory.root().to_owned());
        Failure::Fenced {
            dir: root.unwrap_or_default(),
            generation: first_generation + generation,
            newer,
            first_generation,
        }
    }
}
