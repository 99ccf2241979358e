//! Where agent and trainer are on this machine.

use std::path::{Path, PathBuf};

use anyhow::bail;

/// The two programs of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) agent: PathBuf,
    pub(crate) trainer: PathBuf,
}

impl Programs {
    /// The user's word, else beside this program, else on the PATH.
    pub(crate) fn find(agent: Option<&Path>, trainer: Option<&Path>) -> anyhow::Result<Self> {
        Ok(Self {
            agent: find(agent, "roundhouse-agent", "--agent")?,
            trainer: find(trainer, "roundhouse-train", "--trainer")?,
        })
    }
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
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = beside
        .into_iter()
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file());
    let Some(found) = found else {
        bail!(
            "{name} is neither beside this program nor on the PATH: `make try` builds it, or give {option} PATH"
        );
    };
    Ok(found)
}
