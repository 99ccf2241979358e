//! The pod that holds second copies for a worker of one pod: a spare on another node. It may be
//! lost, and another one may take its place, while the worker trains. So the worker writes its own
//! copy first, and each of the two volumes keeps its newest whole state.

use std::path::Path;
use std::time::{Duration, Instant};

use roundhouse_contract::membership::fingerprint_of;
use roundhouse_contract::{CopyPair, CopyRole, HeldCopy, ports};
use roundhouse_elastic::CheckpointId;

use super::message::Operation;
use super::peer::Peer;
use super::server::IDLE_TIMEOUT;
use super::volumes::{Volumes, VolumesError};

/// How long a new holder may need until its processes know the pair.
const PATIENCE: Duration = Duration::from_mins(2);

/// One process of the holder, as the process with its local rank in the worker uses it.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    /// Name of its pod.
    pod: String,
    peer: Peer,
    /// Whether it may not have learned yet that it holds copies.
    is_new: bool,
    /// Whether it has taken the last copy.
    works: bool,
}

/// What the holder has after a copy, or why that is not known.
pub(super) type Stored = Result<Option<HeldCopy>, VolumesError>;

impl Holder {
    /// Stores a copy that this process' own volume has. Returns the newest state of which the
    /// holder had all parts before that.
    pub(super) fn store(&self, id: CheckpointId, volumes: &Volumes) -> Stored {
        let contents = [self.peer.contents()?];
        let kept = volumes.placement.newest_whole(&contents);
        let (file, num_bytes) = volumes.open(id)?;
        let operation = Operation::Store {
            shard: volumes.shard,
            id,
            kept,
            strays: Vec::new(),
            num_bytes,
        };
        self.peer.store(operation, (file, num_bytes))?;
        // What the holder has of a state that training has given up is of no use.
        let useful = kept.filter(|kept| kept.generation <= id.generation && kept.step <= id.step);
        Ok(useful.map(|CheckpointId { generation, step }| HeldCopy {
            pair: fingerprint_of(self.peer.life.as_bytes()),
            pod: self.pod.clone(),
            generation,
            step,
        }))
    }

    /// Deletes all copies of a part.
    pub(super) fn discard(&self, shard: u32) -> Result<(), VolumesError> {
        Ok(self.peer.discard(shard)?)
    }

    pub(super) const fn works(&self) -> bool {
        self.works
    }

    pub(super) const fn is_new(&self) -> bool {
        self.is_new
    }
}

/// Reads the pair that this worker is in.
#[derive(Debug)]
pub(super) struct Pairs {
    local_rank: u32,
    known: Option<Known>,
}

/// The newest pair of this worker.
#[derive(Debug)]
struct Known {
    id: String,
    since: Instant,
    /// Whether its holder has taken a copy.
    has_taken_copy: bool,
    /// Whether it has taken the last one.
    works: bool,
}

impl Pairs {
    pub(super) const fn new(local_rank: u32) -> Self {
        Self {
            local_rank,
            known: None,
        }
    }

    /// The holder that the file names now, if there is one.
    pub(super) fn holder(&mut self, file: &Path) -> Option<Holder> {
        let pair = read_pair(file, CopyRole::Worker)?;
        let address = ports::at(&pair.address, ports::PEER_COPIES, self.local_rank)?;
        let known = self.known.take().filter(|known| known.id == pair.id);
        let known = self.known.insert(known.unwrap_or_else(|| Known {
            id: pair.id.clone(),
            since: Instant::now(),
            has_taken_copy: false,
            works: false,
        }));
        let is_new = !known.has_taken_copy && known.since.elapsed() < PATIENCE;
        let works = known.works;
        Some(Holder {
            peer: Peer {
                name: format!("pod {}, which holds second copies", pair.peer),
                life: pair.id,
                address,
                patience: Duration::ZERO,
                durable: IDLE_TIMEOUT,
            },
            pod: pair.peer,
            is_new,
            works,
        })
    }

    /// Records whether the holder has taken the last copy.
    pub(super) const fn record(&mut self, has_taken: bool) {
        if let Some(known) = &mut self.known {
            known.works = has_taken;
            known.has_taken_copy |= has_taken;
        }
    }
}

/// Reads the pair in which this pod has a role. A missing file is an empty one.
pub(super) fn read_pair(file: &Path, role: CopyRole) -> Option<CopyPair> {
    let text = std::fs::read_to_string(file).ok()?;
    CopyPair::parse(&text).filter(|pair| pair.role == role)
}
