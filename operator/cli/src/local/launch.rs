//! Builds the command that starts a worker's agent.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use roundhouse_contract::{WorkerSite, environment, paths};
use roundhouse_planner::launch;

use super::launch_plan::{self, LaunchPlan};
use super::worker::Worker;

/// Ports of the workers' stores, below the kernel's range for outgoing connections.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The command of the agent for a worker with the directory `dir`.
pub(crate) fn command(plan: &LaunchPlan, worker: &Worker, dir: &Path) -> Command {
    let variables = launch::environment(&plan.job, worker.index(), site(plan, worker, dir));
    let mut command = Command::new(&plan.agent);
    command
        // The user's shell may have set them, and they would change which program the agent runs.
        .env_remove(environment::MODE)
        .env_remove(environment::TRAINER_CONFIG_FILE)
        .env_remove(environment::SHARDED)
        .envs(plan.variables.iter().cloned())
        .envs(variables.to_pairs())
        .env(environment::END_WITH_PARENT, std::process::id().to_string())
        .arg("--http-address=127.0.0.1:0")
        .arg(format!(
            "--termination-log={}",
            dir.join("termination").display()
        ))
        .arg("--")
        .args(&plan.program)
        .stdin(Stdio::null())
        // Ctrl-C must reach only the executor, which then asks its workers to leave.
        .process_group(0);
    command
}

/// Addresses and directories on this machine. No device is expected: the processes use any that the
/// machine has.
fn site(plan: &LaunchPlan, worker: &Worker, dir: &Path) -> WorkerSite {
    WorkerSite {
        address: Some(worker.address()),
        rendezvous_port: worker.port(),
        membership_file: dir.join(paths::MEMBERSHIP_FILE),
        replica_place_file: dir.join(paths::REPLICA_PLACE_FILE),
        run_dir: dir.join("run"),
        trainer_config_file: launch_plan::trainer_config(&plan.dir),
        data_dir: plan.data_dir.clone(),
        checkpoint_dir: launch_plan::state(&plan.dir),
        copies_dir: dir.join("copies"),
        copy_pair_file: None,
        expected_device: None,
    }
}

/// A port without a listener. The search begins at another port for each worker and each process.
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
