//! The environment of each process of a script in restart mode: the names and meanings of torchrun,
//! so that a script for torchrun runs unchanged.
//!
//! Reference: <https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables>.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{EnvironmentInvalid, LOCAL_RANK, LOCAL_WORLD_SIZE, RUN_DIR, number};
use crate::{Membership, ports};

/// Rank of the process in the generation, from 0.
pub const RANK: &str = "RANK";
/// Number of processes of the generation.
pub const WORLD_SIZE: &str = "WORLD_SIZE";
/// Rank of the worker in the generation.
pub const NODE_RANK: &str = "NODE_RANK";
/// Rank of the worker, as torchrun calls it.
pub const GROUP_RANK: &str = "GROUP_RANK";
/// Number of workers, as torchrun calls it.
pub const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
/// The same as [`RANK`], since there is one role.
pub const ROLE_RANK: &str = "ROLE_RANK";
/// The same as [`WORLD_SIZE`], since there is one role.
pub const ROLE_WORLD_SIZE: &str = "ROLE_WORLD_SIZE";
/// Always `default`, since there is one role.
pub const ROLE_NAME: &str = "ROLE_NAME";
/// IP address of the worker with rank 0.
pub const MASTER_ADDR: &str = "MASTER_ADDR";
/// Port on which rank 0 must listen; another port in each generation.
pub const MASTER_PORT: &str = "MASTER_PORT";
/// Number of restarts of the processes: the generations before this one.
pub const RESTART_COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
/// Most restarts; the job's failure policy bounds them, not the script.
pub const MAX_RESTARTS: &str = "TORCHELASTIC_MAX_RESTARTS";
/// Name of the job.
pub const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
/// Always `False`, since rank 0 itself hosts the store.
pub const USE_AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
/// Number of the generation, from 1; it only grows.
pub const GENERATION: &str = "ROUNDHOUSE_GENERATION";
/// File to which the process may write its progress, as [`crate::ScriptProgress`].
pub const PROGRESS_FILE: &str = "ROUNDHOUSE_PROGRESS_FILE";

/// The environment of one process of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptEnvironment {
    /// Rank, 0 ≤ `rank` < `world_size`.
    pub rank: u32,
    /// Number of processes of the generation.
    pub world_size: u32,
    /// Place on this worker, from 0.
    pub local_rank: u32,
    /// Number of processes of this worker.
    pub local_world_size: u32,
    /// Rank of this worker in the generation.
    pub node_rank: u32,
    /// Number of workers of the generation.
    pub nodes: u32,
    /// IP address of the worker with rank 0.
    pub master_address: String,
    /// Port on which rank 0 listens.
    pub master_port: u16,
    /// Number of the generation, from 1.
    pub generation: u64,
    /// Name of the job.
    pub job: String,
    /// Directory that the processes of a worker and its agent share.
    pub run_dir: PathBuf,
    /// File to which the process may write its progress.
    pub progress_file: PathBuf,
}

impl ScriptEnvironment {
    /// The environment of a process in a generation.
    #[must_use]
    pub fn of(membership: &Membership, local_rank: u32, job: &str, run_dir: PathBuf) -> Self {
        Self {
            rank: membership.rank(local_rank),
            world_size: membership.world_size(),
            local_rank,
            local_world_size: membership.procs_per_worker,
            node_rank: membership.node_rank,
            nodes: membership.nodes,
            master_address: membership.master.address.clone(),
            master_port: ports::of_generation(membership.master.port, membership.generation),
            generation: membership.generation,
            job: job.to_owned(),
            progress_file: crate::paths::rank_progress(&run_dir, local_rank),
            run_dir,
        }
    }

    /// Names and values for a process to start.
    #[must_use]
    pub fn to_pairs(&self) -> BTreeMap<&'static str, String> {
        let path = |path: &PathBuf| path.display().to_string();
        let mut pairs = BTreeMap::from([
            (MASTER_ADDR, self.master_address.clone()),
            (MASTER_PORT, self.master_port.to_string()),
            (RUN_ID, self.job.clone()),
            (USE_AGENT_STORE, "False".to_owned()),
            (ROLE_NAME, "default".to_owned()),
            (MAX_RESTARTS, i32::MAX.to_string()),
            (RESTART_COUNT, self.generation.saturating_sub(1).to_string()),
            (GENERATION, self.generation.to_string()),
            (RUN_DIR, path(&self.run_dir)),
            (PROGRESS_FILE, path(&self.progress_file)),
        ]);
        for (names, value) in [
            (&[RANK, ROLE_RANK][..], self.rank),
            (&[WORLD_SIZE, ROLE_WORLD_SIZE], self.world_size),
            (&[LOCAL_RANK], self.local_rank),
            (&[LOCAL_WORLD_SIZE], self.local_world_size),
            (&[NODE_RANK, GROUP_RANK], self.node_rank),
            (&[GROUP_WORLD_SIZE], self.nodes),
        ] {
            pairs.extend(names.iter().map(|name| (*name, value.to_string())));
        }
        pairs
    }

    /// Reads the environment through `get` (`|name| std::env::var(name).ok()`).
    ///
    /// # Errors
    /// Fails with the first variable that is missing or cannot be read.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, EnvironmentInvalid> {
        let text = |variable| {
            get(variable).ok_or(EnvironmentInvalid {
                variable,
                found: None,
            })
        };
        Ok(Self {
            rank: number(RANK, text(RANK)?)?,
            world_size: number(WORLD_SIZE, text(WORLD_SIZE)?)?,
            local_rank: number(LOCAL_RANK, text(LOCAL_RANK)?)?,
            local_world_size: number(LOCAL_WORLD_SIZE, text(LOCAL_WORLD_SIZE)?)?,
            node_rank: number(NODE_RANK, text(NODE_RANK)?)?,
            nodes: number(GROUP_WORLD_SIZE, text(GROUP_WORLD_SIZE)?)?,
            master_address: text(MASTER_ADDR)?,
            master_port: number(MASTER_PORT, text(MASTER_PORT)?)?,
            generation: number(GENERATION, text(GENERATION)?)?,
            job: text(RUN_ID)?,
            run_dir: text(RUN_DIR)?.into(),
            progress_file: text(PROGRESS_FILE)?.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::{Action, Incarnation, Master};

    fn environment() -> ScriptEnvironment {
        let membership = Membership {
            life: String::new(),
            nonce: String::new(),
            generation: 7,
            action: Action::Join,
            node_rank: 1,
            nodes: 3,
            procs_per_worker: 4,
            master: Master {
                address: "10.0.0.7".to_owned(),
                port: ports::RENDEZVOUS,
            },
            members: String::new(),
            incarnation: Incarnation {
                pod_uid: String::new(),
                restarts: 0,
            },
            issued_at: String::new(),
            repeats: 0,
        };
        ScriptEnvironment::of(&membership, 2, "gpt", "/run/roundhouse".into())
    }

    #[test]
    fn script_environment_round_trips() {
        let pairs = environment().to_pairs();
        let read = ScriptEnvironment::read(|name| pairs.get(name).cloned());
        assert_eq!(read, Ok(environment()));
    }

    #[test]
    fn script_environment_matches_torchrun() {
        let pairs = environment().to_pairs();
        for (name, value) in [
            ("RANK", "6"),
            ("WORLD_SIZE", "12"),
            ("LOCAL_RANK", "2"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("GROUP_RANK", "1"),
            ("MASTER_ADDR", "10.0.0.7"),
            ("MASTER_PORT", "29507"),
            ("TORCHELASTIC_RESTART_COUNT", "6"),
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
        ] {
            assert_eq!(pairs.get(name).map(String::as_str), Some(value), "{name}");
        }
    }
}
