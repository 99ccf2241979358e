//! The launch plan of a run: what all its workers have in common, and where their state is.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use roundhouse_api::{Checkpoint, CheckpointHostPath, CheckpointVolume, TrainingJob};
use roundhouse_contract::{Mode, TrainerConfig, environment};
use roundhouse_planner::{Program, Script, ValidatedJob};

use super::Options;
use super::custom_command::{self, Invocation};
use super::manifest::Manifest;
use super::programs;
use super::run_directory::RunDirectory;

/// Seconds between two checkpoints of a job without `spec.checkpoint`.
const DEFAULT_EVERY_SECONDS: u64 = 10;
/// Number of checkpoints that such a job keeps.
const DEFAULT_KEEP: u32 = 3;

/// What all workers of a job have in common.
#[derive(Clone, Debug)]
pub(crate) struct LaunchPlan {
    pub(crate) agent: PathBuf,
    /// The program that the agent runs, with its arguments.
    pub(crate) program: Vec<String>,
    pub(crate) dir: PathBuf,
    /// Directory of the workers' small files.
    pub(crate) workers: PathBuf,
    /// Base of relative data paths of the built-in trainer.
    pub(crate) data_dir: PathBuf,
    /// The job; its UID is that of the run.
    pub(crate) job: ValidatedJob,
    /// Variables that a cluster does not set from the job: those of the pod template, and where to
    /// write the weights.
    pub(crate) variables: Vec<(String, String)>,
}

/// With `--dir`, gives a job without `spec.checkpoint` a checkpoint volume in that directory. The
/// spec then says where the state is, so status and diagnosis are right.
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
        every_seconds: Some(DEFAULT_EVERY_SECONDS),
        keep: DEFAULT_KEEP,
        best: None,
        local: None,
    });
}

/// Directory of the checkpoints and the ledger.
pub(super) fn state(directory: &Path) -> PathBuf {
    directory.join("state")
}

/// Path of the built-in trainer's configuration.
pub(super) fn trainer_config(directory: &Path) -> PathBuf {
    directory.join("trainer-config.json")
}

/// The launch plan of a run that starts.
pub(super) fn of(
    options: &Options,
    manifest: &Manifest,
    job: &ValidatedJob,
    directory: &RunDirectory,
) -> anyhow::Result<LaunchPlan> {
    let (directory, workers) = (directory.path(), directory.workers());
    let agent = programs::agent(options.agent.as_deref())?;
    let data_dir = match &job.program {
        Program::Trainer(_) => manifest.data_dir(options.data.as_deref(), directory)?,
        Program::Joining { .. } | Program::Script(_) => directory.to_owned(),
    };
    let (program, variables) = match &job.program {
        Program::Trainer(config) => built_in(options, config, directory)?,
        Program::Joining { command, .. } | Program::Script(Script { command, .. }) => {
            own_program(options, job, command)?
        }
    };
    Ok(LaunchPlan {
        agent,
        program,
        dir: directory.to_owned(),
        workers: workers.to_owned(),
        data_dir,
        job: job.clone(),
        variables,
    })
}

/// The launch plan of workers that start after an edit of the job. The built-in trainer's
/// configuration cannot be edited.
pub(super) fn after_edit(
    options: &Options,
    before: &LaunchPlan,
    job: &ValidatedJob,
) -> anyhow::Result<LaunchPlan> {
    let mut plan = before.clone();
    if let Some(command) = job.program.own_command() {
        (plan.program, plan.variables) = own_program(options, job, command)?;
    }
    plan.job = job.clone();
    Ok(plan)
}

/// The built-in trainer, or a program that uses its library.
fn built_in(
    options: &Options,
    config: &TrainerConfig,
    directory: &Path,
) -> anyhow::Result<Invocation> {
    let trainer = programs::trainer(options.trainer.as_deref())?;
    std::fs::write(
        trainer_config(directory),
        serde_json::to_string_pretty(config)?,
    )?;
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

/// The user's own command from the pod template.
fn own_program(
    options: &Options,
    job: &ValidatedJob,
    command: &[String],
) -> anyhow::Result<Invocation> {
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
            "{option}: leave it out: it configures the built-in trainer, and the job runs its own command"
        );
    }
    custom_command::of(&job.template, command, |name| std::env::var(name).ok())
}

/// The UID of the job in this run. It distinguishes the runs in one directory, each of which counts
/// its generations from 1.
pub(super) fn run_uid() -> String {
    let now = jiff::Timestamp::now().as_microsecond();
    format!("local-{now}-{}", std::process::id())
}
