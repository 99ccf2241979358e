//! Acts on nodes and containers of the local cluster, with the commands of `tests/cluster/cluster`.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use roundhouse_contract::labels;

use crate::manifests::repository;

/// Runs a command of the local cluster and returns its output.
///
/// # Errors
/// The command failed; the error has its output.
pub fn local_cluster(arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(repository().join("tests/cluster/cluster"));
    let output = command.args(arguments).output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    ensure!(output.status.success(), "cluster {arguments:?}: {said}");
    Ok(said)
}

/// The process id, on this machine, of a worker's agent: the main process of its container.
///
/// # Errors
/// The container does not run.
pub fn agent(namespace: &str, pod: &str) -> anyhow::Result<u32> {
    main_process(namespace, pod, labels::TRAINER_CONTAINER)
}

/// The process id, on this machine, of a container's main process.
///
/// # Errors
/// The container does not run.
pub fn main_process(namespace: &str, pod: &str, container: &str) -> anyhow::Result<u32> {
    let said = local_cluster(&["pid", namespace, pod, container])?;
    said.parse().with_context(|| format!("{pod}: {said}"))
}

/// The process id of the only child of a worker's agent: the process that trains.
///
/// # Errors
/// The agent has no child, or more than one.
pub fn process(namespace: &str, pod: &str) -> anyhow::Result<u32> {
    let found = processes(namespace, pod)?;
    ensure!(found.len() == 1, "{pod}: {found:?}");
    Ok(found[0])
}

/// The process ids of the children of a worker's agent: the processes that train.
///
/// # Errors
/// The container does not run.
pub fn processes(namespace: &str, pod: &str) -> anyhow::Result<Vec<u32>> {
    let agent = agent(namespace, pod)?;
    let children = std::fs::read_to_string(format!("/proc/{agent}/task/{agent}/children"))?;
    let children = children.split_whitespace().map(str::parse);
    children
        .collect::<Result<_, _>>()
        .with_context(|| format!("{pod}: the children of its agent"))
}

/// Creates an empty directory that all nodes of the local cluster mount and any user may write to.
/// The files of an earlier run are deleted, because a job would continue from their checkpoint.
///
/// # Errors
/// The directory cannot be created or emptied.
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
