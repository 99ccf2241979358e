//! How a worker's agent is started.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use roundhouse_contract::{WorkerSite, environment, paths};
use roundhouse_planner::{ValidatedJob, launch};

use super::setting;
use super::worker::Worker;

/// Below the range from which the kernel takes ports for connections.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// What all workers of a job have in common.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) agent: PathBuf,
    /// What the agent runs, and its arguments.
    pub(crate) program: Vec<String>,
    pub(crate) dir: PathBuf,
    /// Where the small files of the workers are.
    pub(crate) workers: PathBuf,
    /// Where relative data paths of the built-in trainer start.
    pub(crate) data_dir: PathBuf,
    /// The job that they run, whose UID is that of the run.
    pub(crate) job: ValidatedJob,
    /// What this program gives its processes beside what a cluster does: the variables of the template, which a pod spec has,
    /// and where the weights are written.
    pub(crate) variables: Vec<(String, String)>,
}

/// The agent of a worker whose directory is `dir`.
pub(crate) fn command(setting: &Setting, worker: &Worker, dir: &Path) -> Command {
    let variables = launch::environment(&setting.job, worker.index(), site(setting, worker, dir));
    let mut command = Command::new(&setting.agent);
    command
        // They say what is run, and whoever started this program may run something else.
        .env_remove(environment::MODE)
        .env_remove(environment::TRAINER_CONFIG_FILE)
        .envs(setting.variables.iter().cloned())
        .envs(variables.to_pairs())
        .env(environment::END_WITH_PARENT, std::process::id().to_string())
        .arg("--http-address=127.0.0.1:0")
        .arg(format!(
            "--termination-log={}",
            dir.join("termination").display()
        ))
        .arg("--")
        .args(&setting.program)
        .stdin(Stdio::null())
        // A Ctrl-C of the terminal is for the executor, which asks its workers to leave.
        .process_group(0);
    command
}

/// Addresses and directories on this machine. The processes compute on what they find here.
fn site(setting: &Setting, worker: &Worker, dir: &Path) -> WorkerSite {
    WorkerSite {
        address: Some(worker.address()),
        rendezvous_port: worker.port(),
        membership_file: dir.join(paths::MEMBERSHIP_FILE),
        run_dir: dir.join("run"),
        trainer_config_file: setting::trainer_config(&setting.dir),
        data_dir: setting.data_dir.clone(),
        checkpoint_dir: setting::state(&setting.dir),
        expected_device: None,
    }
}

/// A port that nobody listens on; each worker looks from another place on.
pub(crate) fn free_port(number: u32) -> anyhow::Result<u16> {
    let span = u32::from(PORTS.end - PORTS.start);
    let first = std::process::id().wrapping_mul(31).wrapping_add(number * 7);
    let candidates = (0..span)
        .filter_map(|n| u16::try_from(u32::from(PORTS.start) + first.wrapping_add(n) % span).ok());
    let is_free = |port: &u16| TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], *port))).is_ok();
    candidates
        .into_iter()
        .find(is_free)
        .context("no port is free between 20000 and 32000")
}
