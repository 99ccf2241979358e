//! What the volume has, while a generation forms: a process may have waited in the lobby for days, or was out of touch,
//! while others saved.

use std::time::{Duration, Instant};

use roundhouse_elastic::state::{Names, Volume};
use roundhouse_elastic::{Claim, Origin, Place};
use roundhouse_report::{say, say_error};

use crate::checkpoint::Manifest;
use crate::checkpointing::look::Searched;
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::local_state::LocalState;
use crate::member::Member;
use crate::world::{Search, World};

use super::SIGN_OF_LIFE_INTERVAL;

/// How long rank 0 waits for the listing before the first agreement. Ranks that have a state in memory continue without
/// it then.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long it waits before each further one.
const NEXT_TIMEOUT: Duration = Duration::from_millis(100);
/// How often the ranks ask the one that searches.
const PAUSE: Duration = Duration::from_millis(10);

/// What this rank knows of the volume while it forms a generation.
#[derive(Debug)]
pub(super) struct Looking {
    began: Instant,
    reported: Instant,
    names: Option<Names>,
    has_waited: bool,
    has_searched: bool,
    /// A checkpoint that this rank has found, and that is newer than the state that it has in memory.
    offer: Option<Claim>,
}

impl Looking {
    /// Whether this generation has waited for the volume.
    pub(super) const fn is_waiting(&self) -> bool {
        self.has_waited
    }

    /// What this rank can bring to the generation: its own state, or the checkpoint that it has found.
    pub(super) fn claim_of(&self, local_state: &LocalState) -> Claim {
        let own = local_state.claim();
        self.offer.map_or(own, |offer| own.max(offer))
    }
}

impl<R: Rendezvous> Member<'_, R> {
    /// A generation forms. Rank 0 lists the volume for all.
    pub(super) fn begin_look(&mut self, world: &World<R::Group>) -> Looking {
        if let Some(checkpointing) = &mut self.checkpointing {
            checkpointing.directory.damaged().forget_unread();
            if world.rank() == 0 {
                checkpointing.begin_look();
            }
        }
        let now = Instant::now();
        Looking {
            began: now,
            reported: now,
            names: None,
            has_waited: false,
            has_searched: false,
            offer: None,
        }
    }

    /// What this rank knows of the volume. Rank 0 waits a moment for its answer.
    pub(super) fn volume(&mut self, world: &World<R::Group>, looking: &mut Looking) -> Volume {
        let Some(checkpointing) = &mut self.checkpointing else {
            return Volume::Absent;
        };
        if world.rank() != 0 {
            return Volume::Silent;
        }
        if looking.names.is_none() {
            let timeout = if looking.has_waited {
                NEXT_TIMEOUT
            } else {
                FIRST_TIMEOUT
            };
            looking.names = checkpointing.names(timeout);
        }
        let Some(names) = looking.names else {
            return Volume::Silent;
        };
        // What was found is among the claims.
        let checkpoint = names.checkpoint.filter(|_| !looking.has_searched);
        Volume::Names(Names {
            checkpoint,
            ..names
        })
    }

    /// The volume has not answered, and training cannot continue without it.
    pub(super) fn wait_for_volume(&mut self, looking: &mut Looking) -> Result<(), Failure> {
        looking.has_waited = true;
        self.forming_lives(looking);
        match &self.checkpointing {
            Some(checkpointing) => {
                checkpointing.check_io_timeout(looking.began.elapsed(), looking.began)
            }
            None => Ok(()),
        }
    }

    /// One rank searches the volume for its newest checkpoint, and claims it from now on.
    ///
    /// # Errors
    /// On the rank that searches, what [`crate::checkpoint::load::find`] says, unless training can continue without.
    pub(super) fn search(
        &mut self,
        world: &World<R::Group>,
        place: &Place,
        search: &Search,
        looking: &mut Looking,
    ) -> Result<(), Failure> {
        (looking.has_searched, looking.has_waited) = (true, true);
        looking.offer = None;
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
                    self.claim_found(found.map(|found| *found), looking);
                }
            }
            let numbers = [is_done, self.is_pointless(place)].map(|it| f64::from(u8::from(it)));
            let sums = world.sum(&numbers)?;
            self.forming_lives(looking);
            // If the generation is pointless, the next agreement says so.
            if sums.iter().any(|sum| *sum > 0.0) {
                return Ok(());
            }
        }
    }

    fn claim_found(&mut self, found: Option<Manifest>, looking: &mut Looking) {
        let Some(checkpointing) = &mut self.checkpointing else {
            return;
        };
        if let Some(manifest) = &found {
            say(&format!("found {}", checkpointing.name(manifest)));
            if self.local_state.claim().origin == Origin::Live {
                // It stays until the checkpoint's bytes are read over it.
                looking.offer = Some(manifest.claim());
            } else {
                self.local_state.stand_for(manifest);
            }
        }
        checkpointing.stand_for(found);
    }

    /// Whether this rank has heard of a newer generation, or leaves.
    pub(super) fn is_pointless(&mut self, place: &Place) -> bool {
        self.look();
        self.machine.supersedes(place)
    }

    /// The ranks have heard of each other, so none of them hangs.
    fn forming_lives(&mut self, looking: &mut Looking) {
        if let Some(peers) = &self.peers {
            peers.interrupter.moves();
        }
        if looking.reported.elapsed() >= SIGN_OF_LIFE_INTERVAL {
            self.reporter.waits();
            looking.reported = Instant::now();
        }
    }

    /// Another world has this generation's number, or a later one.
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
