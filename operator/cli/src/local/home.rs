//! The directory of a run, and what the workers are told of it.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use roundhouse_contract::environment;
use roundhouse_planner::ValidatedJob;

use super::Options;
use super::launch::Setting;
use super::manifest::Manifest;
use super::programs::Programs;

/// Between two checkpoints of a job that says nothing of them.
const UNASKED_SECONDS: u64 = 10;
/// What all workers have in common.
pub(super) fn setting(
    options: &Options,
    manifest: &Manifest,
    job: &ValidatedJob,
    programs: Programs,
    home: &Path,
) -> anyhow::Result<Setting> {
    let Some(trainer) = job.program.trainer() else {
        bail!(
            "only the built-in trainer runs on this machine; elastic.mode Restart needs a cluster"
        );
    };
    let data_dir = manifest.data_dir(options.data.as_deref(), home)?;
    let config_file = home.join("trainer-config.json");
    std::fs::write(&config_file, serde_json::to_string_pretty(trainer)?)?;
    let mut variables = keeping(options, job, home);
    if let Some(seconds) = job.stall_timeout_seconds {
        let name = environment::STALL_TIMEOUT_SECONDS.to_owned();
        variables.push((name, seconds.to_string()));
    }
    if let Some(path) = &options.save_weights {
        let path = std::path::absolute(path)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        if !parent.is_dir() {
            bail!("--save-weights: there is no directory {}", parent.display());
        }
        variables.push((
            environment::SAVE_WEIGHTS.to_owned(),
            path.display().to_string(),
        ));
    }
    Ok(Setting {
        programs,
        dir: home.to_owned(),
        data_dir,
        config_file,
        procs: job.procs_per_worker,
        variables,
    })
}

/// Where the state is kept, if it is: with `--dir`, or if the job wants it. The job's own volume is one of
/// a cluster.
fn keeping(options: &Options, job: &ValidatedJob, home: &Path) -> Vec<(String, String)> {
    if options.dir.is_none() && job.checkpoint.is_none() {
        return Vec::new();
    }
    let dir = home.join("state").display().to_string();
    let wanted = job.checkpoint.as_ref();
    let steps = wanted.and_then(|checkpoint| checkpoint.every_steps);
    let seconds = wanted.map_or(Some(UNASKED_SECONDS), |checkpoint| checkpoint.every_seconds);
    let all = [
        (environment::CHECKPOINT_DIR, Some(dir)),
        (environment::JOB_UID, Some(run_uid())),
        (
            environment::CHECKPOINT_EVERY_STEPS,
            steps.map(|n| n.to_string()),
        ),
        (
            environment::CHECKPOINT_EVERY_SECONDS,
            seconds.map(|n| n.to_string()),
        ),
        (
            environment::CHECKPOINT_KEEP,
            wanted.map(|c| c.keep.to_string()),
        ),
    ];
    let set = all
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    set.collect()
}

/// Tells the runs in one directory apart: each counts its generations from 1.
fn run_uid() -> String {
    let now = jiff::Timestamp::now().as_microsecond();
    format!("local-{now}-{}", std::process::id())
}

/// The run's directory.
pub(super) struct Home {
    path: PathBuf,
    is_ours: bool,
}

impl Home {
    pub(super) fn make(given: Option<&Path>) -> anyhow::Result<Self> {
        let path = match given {
            Some(given) => std::path::absolute(given)?,
            None => std::env::temp_dir().join(format!("roundhouse-{}", std::process::id())),
        };
        let subdirectories = ["logs", "workers"].map(|name| path.join(name));
        // Places of workers of an earlier run must not be taken for this one's.
        let _ = std::fs::remove_dir_all(&subdirectories[1]);
        for directory in &subdirectories {
            std::fs::create_dir_all(directory).with_context(|| {
                format!("cannot make {}; give another --dir", directory.display())
            })?;
        }
        Ok(Self {
            path,
            is_ours: given.is_none(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn close(&self, succeeded: bool) {
        if self.is_ours && succeeded {
            let _ = std::fs::remove_dir_all(&self.path);
        } else {
            println!("logs: {}", self.path.join("logs").display());
        }
    }
}
