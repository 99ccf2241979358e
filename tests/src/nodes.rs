//! What tests do to nodes and containers of the local cluster: the commands of `tests/cluster/cluster`.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use roundhouse_contract::labels;

use crate::manifests::repository;

/// Runs a command of the local cluster and returns what it said.
///
/// # Errors
/// It failed.
pub fn local_cluster(arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(repository().join("tests/cluster/cluster"));
    let output = command.args(arguments).output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    ensure!(output.status.success(), "cluster {arguments:?}: {said}");
    Ok(said)
}

/// The agent of a worker: its container's main process, as a process of this machine.
///
/// # Errors
/// It does not run.
pub fn agent(namespace: &str, pod: &str) -> anyhow::Result<u32> {
    main_process(namespace, pod, labels::TRAINER_CONTAINER)
}

/// A container's main process, as a process of this machine.
///
/// # Errors
/// It does not run.
pub fn main_process(namespace: &str, pod: &str, container: &str) -> anyhow::Result<u32> {
    let said = local_cluster(&["pid", namespace, pod, container])?;
    said.parse().with_context(|| format!("{pod}: {said}"))
}

/// The only child of a worker's agent: the process that trains.
///
/// # Errors
/// There is none, or more than one.
pub fn process(namespace: &str, pod: &str) -> anyhow::Result<u32> {
    let agent = agent(namespace, pod)?;
    let children = std::fs::read_to_string(format!("/proc/{agent}/task/{agent}/children"))?;
    let child = children.trim();
    child.parse().with_context(|| format!("{pod}: {child}"))
}

/// An empty directory of this machine that all nodes of the local cluster see, and whose files any user may write. What an
/// earlier run left there is deleted: a job would continue from its checkpoint.
///
/// # Errors
/// It cannot be made or emptied.
pub fn shared_directory(name: &str) -> anyhow::Result<PathBuf> {
    let repository = repository().canonicalize()?;
    let shared = repository.join("target/cluster/state/volumes").join(name);
    if shared.exists() {
        std::fs::remove_dir_all(&shared)?;
    }
    std::fs::create_dir_all(&shared)?;
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o777))?;
    Ok(shared)
}
