//! The replica of this process: the processes of its worker, in one pod or several, which hold one
//! copy of the state together.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use roundhouse_contract::environment::ReplicaPods;
use roundhouse_contract::{paths, ports};
use roundhouse_elastic::Digest;
use roundhouse_elastic::state::layout::Sharing;
use roundhouse_member::Launch;
use roundhouse_member::failure::{self, Kept};
use roundhouse_member::faults::Cut;
use roundhouse_member::group::Abort;
use roundhouse_member::interrupt::Interrupter;
use roundhouse_member::links::{Connections, Links, NUM_NUMBERS};
use roundhouse_member::rendezvous::{Network, Ranks, Store};
use roundhouse_member::signals::{self, LeaveRequest};
use tch::Device;

use crate::failure::Failure;
use crate::group::C10dGroup;
use crate::rendezvous::C10d;
use crate::sync::SyncError;

/// How long a process waits for its siblings, which may still load their data. If one of them
/// fails, the agent ends all.
const TIME_TO_COME: Duration = Duration::from_mins(30);

/// The replica of this process. It exists as long as the process: if another process of it ends,
/// this one must end, too.
#[derive(Debug)]
pub struct Replica {
    links: Links,
    /// Ends the connections of [`Self::links`].
    connections: Arc<Connections>,
    group: Arc<C10dGroup>,
    /// With a pipeline: the same processes once more.
    second: Option<Arc<C10dGroup>>,
    /// A number for the life of the replica.
    life: u32,
    /// The agent creates this file when the replica is lost.
    over: PathBuf,
    /// The generation of the last turn, and its number: see [`Links::sum`].
    last_turn: (u64, u64),
    /// Whether the other processes may have got this one's vote in the last turn.
    has_voted: bool,
}

impl Replica {
    /// Connects the processes of this worker; `None` if each of them has a copy of the state.
    /// `needs_second`: in two groups, for two directions.
    ///
    /// # Errors
    /// A process does not come within 30 minutes, or this one is asked to leave before.
    pub fn meet(
        launch: &Launch,
        device: Device,
        leave: &LeaveRequest,
        needs_second: bool,
    ) -> Result<Option<Self>, Failure> {
        let Some(file) = &launch.replica_file else {
            return Ok(None);
        };
        let (shard, num_shards) = (launch.index_in_replica(), launch.procs_per_replica());
        let mut is_asked = || leave.is_made();
        let pods = launch.replica_pods.as_ref();
        let met = match pods {
            None => Links::meet(file, shard, num_shards, TIME_TO_COME, &mut is_asked)?,
            Some(pods) => {
                let (local, procs) = (launch.local_rank, launch.local_world_size);
                Links::meet_pods(pods, local, procs, TIME_TO_COME, &mut is_asked)?
            }
        };
        let mut links = met.ok_or(failure::Failure::Left {
            step: 0,
            kept: Kept::Untrained,
        })?;
        let connections = links.connections().map_err(|error| {
            Failure::internal(format!("the connections of the replica: {error}"))
        })?;
        let timeout = launch.timeouts.connect;
        let network = C10d::on(device);
        let (own, first) = addresses(pods)?;
        let store = if shard == 0 {
            // In one pod any port is free.
            let port = pods.map_or(0, |_| ports::REPLICA_STORE);
            let store = network.host(own, port, timeout)?;
            links.of_first(u64::from(store.port()), timeout)?;
            store
        } else {
            let port = links.of_first(0, timeout)?;
            let port = u16::try_from(port).map_err(|error| Failure::internal(error.to_string()))?;
            network.dial(&first.to_string(), port, timeout)?
        };
        let ranks = Ranks {
            generation: 0,
            rank: shard,
            size: num_shards,
            timeout,
            address: own,
            own_store_port: (shard == 0).then(|| store.port()),
        };
        let second = Ranks {
            generation: 1,
            ..ranks
        };
        let second = if needs_second {
            let store = store.part("second")?;
            Some(Arc::new(network.connect(store, &second)?))
        } else {
            None
        };
        let group = Arc::new(network.connect(store, &ranks)?);
        Ok(Some(Self {
            links,
            connections: Arc::new(connections),
            group,
            second,
            life: life(pods, file),
            over: paths::end_of_life(file),
            last_turn: (0, 0),
            has_voted: false,
        }))
    }

    /// The collectives of the replica.
    #[must_use]
    pub fn group(&self) -> Arc<C10dGroup> {
        Arc::clone(&self.group)
    }

    /// The second group of the same processes.
    pub(crate) fn second_group(&self) -> Option<Arc<C10dGroup>> {
        self.second.clone()
    }

    /// Lets another thread end the waits for the other processes of the replica.
    pub(crate) fn guard(&self, interrupter: &Interrupter) {
        let weak = |group: &Arc<C10dGroup>| -> Weak<dyn Abort> { Arc::downgrade(group) as _ };
        let mut connections: Vec<_> = self.all().map(weak).collect();
        connections.push(Arc::downgrade(&self.connections) as _);
        interrupter.guard_replica(connections, self.over.clone());
    }

    /// Ends all collectives of the replica, which cannot continue.
    pub(crate) fn abort(&self) {
        self.all().for_each(|group| group.abort());
    }

    /// Sets how long later collectives of the replica wait for its processes.
    pub fn set_timeout(&self, timeout: Duration) {
        self.all().for_each(|group| group.set_timeout(timeout));
    }

    fn all(&self) -> impl Iterator<Item = &Arc<C10dGroup>> {
        std::iter::once(&self.group).chain(&self.second)
    }

    /// The place of this process in its replica.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        Sharing {
            shard: self.links.shard(),
            num_shards: self.links.num_shards(),
            replica: self.life,
        }
    }

    /// Whether this process has voted in the last turn: a process whose collective has failed does
    /// not, because its gradients may be garbage.
    pub(crate) const fn has_voted(&self) -> bool {
        self.has_voted
    }

    /// Checks that the last collective of the ranks, which has succeeded in this process, has
    /// succeeded in all processes of the replica. If one of them was asked to leave, so are all.
    ///
    /// # Errors
    /// It has failed in another process; or another process has ended, or is silent for `timeout`.
    pub fn confirm(&mut self, generation: u64, timeout: Duration) -> Result<(), Failure> {
        let is_asked = signals::is_asked();
        let mut own = [0.0; NUM_NUMBERS];
        own[0] = f64::from(u8::from(is_asked));
        let sums = self.sum(generation, own, timeout)?;
        if sums[0] > 0.0 && !is_asked {
            signals::ask();
        }
        Ok(())
    }

    /// The sums of numbers of all processes of the replica, which are the same bit for bit in all
    /// of them.
    ///
    /// # Errors
    /// Another process has failed in this generation, or has ended, or is silent for `timeout`.
    pub fn sum(
        &mut self,
        generation: u64,
        own: [f64; NUM_NUMBERS],
        timeout: Duration,
    ) -> Result<[f64; NUM_NUMBERS], Failure> {
        self.has_voted = false;
        if self.all().any(|group| group.has_failed()) {
            return Err(lost(
                &"a collective of the processes of this worker has failed",
            ));
        }
        let turn = self.next_turn(generation);
        self.last_turn = (generation, turn);
        self.has_voted = true;
        let sums = self.links.sum(generation, turn, own, timeout)?;
        let words = "the step failed in another process of this worker";
        sums.ok_or_else(|| Failure::peer_lost(words.to_owned()))
    }

    /// Ends the connections to the other processes of the replica, as a failing network does,
    /// before or after all have voted in the next turn. This process does not learn the outcome.
    pub fn cut(&mut self, generation: u64, cut: Cut, timeout: Duration) {
        if cut == Cut::AfterVote {
            let turn = self.next_turn(generation);
            let _ = self
                .links
                .sum(generation, turn, [0.0; NUM_NUMBERS], timeout);
        }
        self.connections.abort();
    }

    /// The number of the next turn in this generation.
    fn next_turn(&self, generation: u64) -> u64 {
        match self.last_turn {
            (last, turn) if last == generation => turn + 1,
            _ => 1,
        }
    }

    /// Checks that no other process of the replica has ended.
    ///
    /// # Errors
    /// The failure of a lost process, if one has: this one has to end, too.
    pub fn check(&self) -> Result<(), Failure> {
        Ok(self.links.check()?)
    }

    /// Reports that this process forms a generation and has left all before it.
    pub fn enters(&mut self, generation: u64) {
        self.links.enters(generation);
    }

    /// Reports that this process leaves the generation after a failure.
    pub fn fails(&mut self, generation: u64) {
        self.links.fails(generation);
    }
}

/// The addresses of this process and of the first one of its replica.
fn addresses(pods: Option<&ReplicaPods>) -> Result<(IpAddr, IpAddr), Failure> {
    let Some(pods) = pods else {
        return Ok((Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()));
    };
    let of = |pod: usize| pods.addresses.get(pod).and_then(|text| text.parse().ok());
    let both = of(pods.pod as usize).zip(of(0));
    both.ok_or_else(|| Failure::internal("the replica has an address that is none".to_owned()))
}

/// A number for a life of a replica. Another worker, or another life, rarely has the same: `file`
/// is in a directory of this life, and its path may be the same on another host.
fn life(pods: Option<&ReplicaPods>, file: &Path) -> u32 {
    pods.map_or_else(
        || number_of(&host(), file),
        |pods| number_of(&pods.life, Path::new("")),
    )
}

fn number_of(host: &str, file: &Path) -> u32 {
    let path = file.as_os_str().as_encoded_bytes();
    let number = Digest::of(&[host.as_bytes(), path]).number();
    u32::try_from(number & 0x7fff_ffff).unwrap_or_default()
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
}

/// The failure of a process after an error in a collective of its replica. Its siblings may have
/// completed the collective.
pub(crate) fn explain(error: SyncError) -> Failure {
    match error {
        SyncError::Group(error) | SyncError::Replica(error) => lost(&error),
        SyncError::Torch(error) => error.into(),
    }
}

/// The failure of a process whose siblings have a newer state, or may have.
pub(crate) fn lost(words: &impl ToString) -> Failure {
    failure::Failure::ReplicaLost(words.to_string()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_life_of_each_worker_has_a_number_of_its_own() {
        let path = |life: u64| format!("/run/roundhouse/replica-{life}/file");
        let mut found: Vec<u32> = (0..20)
            .flat_map(|worker| {
                (0..20).map(move |number| (format!("job-worker-{worker}-0"), number))
            })
            .map(|(host, number)| number_of(&host, Path::new(&path(number))))
            .collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), 400);
    }
}
