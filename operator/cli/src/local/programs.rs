//! Finds the agent and the trainer on this machine.

use std::path::{Path, PathBuf};

use anyhow::bail;

/// The agent: from `--agent`, else beside this program, else on the PATH.
pub(super) fn agent(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    find(given, "roundhouse-agent", "--agent")
}

/// The built-in trainer: from `--trainer`, else beside this program, else on the PATH.
pub(super) fn trainer(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    find(given, "roundhouse-train", "--trainer")
}

/// A program of this name on the PATH.
pub(super) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    in_one_of(std::env::split_paths(&path), name)
}

fn in_one_of(directories: impl Iterator<Item = PathBuf>, name: &str) -> Option<PathBuf> {
    directories
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

fn find(given: Option<&Path>, name: &str, option: &str) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        if !given.is_file() {
            bail!("{option}: there is no program {}", given.display());
        }
        return Ok(std::path::absolute(given)?);
    }
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(Path::to_path_buf);
    let Some(found) = in_one_of(beside.into_iter(), name).or_else(|| on_path(name)) else {
        bail!(
            "{name} is neither beside this program nor on the PATH: `make try` builds it, or give {option} PATH"
        );
    };
    Ok(found)
}
