//! What the workers of a run are told, and where their state is kept.

use std::path::{Path, PathBuf};

use anyhow::bail;
use roundhouse_api::{Checkpoint, CheckpointHostPath, CheckpointVolume, TrainingJob};
use roundhouse_contract::{Mode, environment};
use roundhouse_planner::ValidatedJob;

use super::Options;
use super::launch::Setting;
use super::manifest::Manifest;
use super::programs::Programs;

/// Between two checkpoints of a job that says nothing of them.
const UNASKED_SECONDS: u64 = 10;
/// How many of them are kept then.
const UNASKED_KEEP: u32 = 3;

/// With `--dir` a job that says nothing of checkpoints keeps its state there: so its spec says it, and all
/// that is told of it is true.
pub(super) fn keep_state(job: &mut TrainingJob, options: &Options) {
    let Some(dir) = &options.dir else { return };
    if job.spec.elastic.mode != Mode::InProcess {
        return;
    }
    job.spec.checkpoint.get_or_insert_with(|| Checkpoint {
        volume: CheckpointVolume {
            host_path: Some(CheckpointHostPath {
                path: state(dir).display().to_string(),
            }),
            ..CheckpointVolume::default()
        },
        every_steps: None,
        every_seconds: Some(UNASKED_SECONDS),
        keep: UNASKED_KEEP,
        best: None,
    });
}

/// Where checkpoints and ledger are.
pub(super) fn state(home: &Path) -> PathBuf {
    home.join("state")
}

/// What all workers have in common.
pub(super) fn of(
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
    let mut variables = keeping(job, home);
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
        grace: job.grace,
        variables,
    })
}

/// What the trainer is told of checkpoints. The job's own volume is one of a cluster: here they are in `home`.
fn keeping(job: &ValidatedJob, home: &Path) -> Vec<(String, String)> {
    let Some(wanted) = &job.checkpoint else {
        return Vec::new();
    };
    let number = |number: Option<u64>| number.map(|number| number.to_string());
    let all = [
        (
            environment::CHECKPOINT_DIR,
            Some(state(home).display().to_string()),
        ),
        (environment::JOB_UID, Some(run_uid())),
        (
            environment::CHECKPOINT_EVERY_STEPS,
            number(wanted.every_steps),
        ),
        (
            environment::CHECKPOINT_EVERY_SECONDS,
            number(wanted.every_seconds),
        ),
        (environment::CHECKPOINT_KEEP, Some(wanted.keep.to_string())),
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
