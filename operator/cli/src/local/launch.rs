//! How a worker's agent is started.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use roundhouse_contract::{environment, paths};

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
    pub(crate) procs: u32,
    /// Time between SIGTERM and SIGKILL of a worker.
    pub(crate) grace: Duration,
    /// What all processes are told, the user's words first.
    pub(crate) variables: Vec<(String, String)>,
}

/// The agent of a worker whose directory is `dir`.
pub(crate) fn command(setting: &Setting, worker: &Worker, dir: &Path) -> Command {
    let path = |path: &Path| path.display().to_string();
    let mut command = Command::new(&setting.agent);
    command
        // They say what is run, and whoever started this program may run something else.
        .env_remove(environment::MODE)
        .env_remove(environment::TRAINER_CONFIG_FILE)
        .envs(setting.variables.iter().cloned())
        .env(environment::PROCS_PER_WORKER, setting.procs.to_string())
        .env(environment::WORKER_INDEX, worker.index().to_string())
        .env(
            environment::MEMBERSHIP_FILE,
            path(&dir.join(paths::MEMBERSHIP_FILE)),
        )
        .env(environment::RUN_DIR, path(&dir.join("run")))
        .env(environment::POD_IP, worker.address())
        .env(environment::RENDEZVOUS_PORT, worker.port().to_string())
        .env(environment::END_WITH_PARENT, std::process::id().to_string())
        .arg("--http-address=127.0.0.1:0")
        .env(
            environment::TERMINATION_GRACE_SECONDS,
            setting.grace.as_secs().to_string(),
        )
        .arg(format!(
            "--termination-log={}",
            path(&dir.join("termination"))
        ))
        .arg("--")
        .args(&setting.program)
        .stdin(Stdio::null())
        // A Ctrl-C of the terminal is for the executor, which asks its workers to leave.
        .process_group(0);
    command
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
