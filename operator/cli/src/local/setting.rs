//! What the workers of a run have in common, and where their state is kept.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use roundhouse_api::{Checkpoint, CheckpointHostPath, CheckpointVolume, TrainingJob};
use roundhouse_contract::{Mode, TrainerConfig, environment};
use roundhouse_planner::{Program, Script, ValidatedJob};

use super::Options;
use super::home::Home;
use super::launch::Setting;
use super::manifest::Manifest;
use super::own::{self, Told};
use super::programs;

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

/// The file with the configuration of the built-in trainer.
pub(super) fn trainer_config(home: &Path) -> PathBuf {
    home.join("trainer-config.json")
}

/// What all workers have in common.
pub(super) fn of(
    options: &Options,
    manifest: &Manifest,
    job: &ValidatedJob,
    home: &Home,
) -> anyhow::Result<Setting> {
    let (home, workers) = (home.path(), home.workers());
    let agent = programs::agent(options.agent.as_deref())?;
    let data_dir = match &job.program {
        Program::Trainer(_) => manifest.data_dir(options.data.as_deref(), home)?,
        Program::Joining { .. } | Program::Script(_) => home.to_owned(),
    };
    let (program, variables) = match &job.program {
        Program::Trainer(config) => built_in(options, config, home)?,
        Program::Joining { command } | Program::Script(Script { command, .. }) => {
            own_program(options, job, command)?
        }
    };
    Ok(Setting {
        agent,
        program,
        dir: home.to_owned(),
        workers: workers.to_owned(),
        data_dir,
        job: job.clone(),
        variables,
    })
}

/// The setting of workers that start after an edit of the job. What the built-in trainer does cannot be edited.
pub(super) fn after_edit(
    options: &Options,
    before: &Setting,
    job: &ValidatedJob,
) -> anyhow::Result<Setting> {
    let mut setting = before.clone();
    if let Some(command) = job.program.own_command() {
        (setting.program, setting.variables) = own_program(options, job, command)?;
    }
    setting.job = job.clone();
    Ok(setting)
}

/// The built-in trainer, or a program on its library.
fn built_in(options: &Options, config: &TrainerConfig, home: &Path) -> anyhow::Result<Told> {
    let trainer = programs::trainer(options.trainer.as_deref())?;
    std::fs::write(trainer_config(home), serde_json::to_string_pretty(config)?)?;
    let mut variables = Vec::new();
    if let Some(path) = &options.save_weights {
        let path = std::path::absolute(path)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        if !parent.is_dir() {
            bail!("--save-weights: there is no directory {}", parent.display());
        }
        let name = environment::SAVE_WEIGHTS.to_owned();
        variables.push((name, path.display().to_string()));
    }
    Ok((vec![trainer.display().to_string()], variables))
}

/// A command of the user's own.
fn own_program(options: &Options, job: &ValidatedJob, command: &[String]) -> anyhow::Result<Told> {
    let Options {
        data,
        save_weights,
        trainer,
        ..
    } = options;
    for (option, is_given) in [
        ("--data", data.is_some()),
        ("--save-weights", save_weights.is_some()),
        ("--trainer", trainer.is_some()),
    ] {
        ensure!(
            !is_given,
            "{option}: leave it out: it is for the built-in trainer, and the job runs a command of its own"
        );
    }
    own::of(&job.template, command, |name| std::env::var(name).ok())
}

/// The UID of the job in this run. It tells the runs in one directory apart: each counts its generations from 1.
pub(super) fn run_uid() -> String {
    let now = jiff::Timestamp::now().as_microsecond();
    format!("local-{now}-{}", std::process::id())
}
