//! What the workers of a run are told, and where their state is kept.

use std::path::{Path, PathBuf};
use std::time::Duration;

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

/// What all workers have in common.
pub(super) fn of(
    options: &Options,
    manifest: &Manifest,
    job: &ValidatedJob,
    home: &Home,
) -> anyhow::Result<Setting> {
    let (home, workers) = (home.path(), home.workers());
    let agent = programs::agent(options.agent.as_deref())?;
    let (program, mut variables) = match &job.program {
        Program::Trainer(config) => built_in(options, manifest, config, home)?,
        Program::Joining { command } => own_program(options, job, command)?,
        Program::Script(script) => {
            let (command, mut variables) = own_program(options, job, &script.command)?;
            variables.extend(restarting(script));
            (command, variables)
        }
    };
    variables.extend(keeping(job, home));
    if let Some(seconds) = job.stall_timeout_seconds {
        let name = environment::STALL_TIMEOUT_SECONDS.to_owned();
        variables.push((name, seconds.to_string()));
    }
    Ok(Setting {
        agent,
        program,
        dir: home.to_owned(),
        workers: workers.to_owned(),
        procs: job.procs_per_worker,
        grace: job.grace,
        variables,
    })
}

/// The built-in trainer, or a program on its library.
fn built_in(
    options: &Options,
    manifest: &Manifest,
    config: &TrainerConfig,
    home: &Path,
) -> anyhow::Result<Told> {
    let trainer = programs::trainer(options.trainer.as_deref())?;
    let data_dir = manifest.data_dir(options.data.as_deref(), home)?;
    let config_file = home.join("trainer-config.json");
    std::fs::write(&config_file, serde_json::to_string_pretty(config)?)?;
    let told = |name: &str, path: &Path| (name.to_owned(), path.display().to_string());
    let mut variables = vec![
        told(environment::TRAINER_CONFIG_FILE, &config_file),
        told(environment::DATA_DIR, &data_dir),
    ];
    if let Some(path) = &options.save_weights {
        let path = std::path::absolute(path)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        if !parent.is_dir() {
            bail!("--save-weights: there is no directory {}", parent.display());
        }
        variables.push(told(environment::SAVE_WEIGHTS, &path));
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
    let (command, mut variables) =
        own::of(&job.template, command, |name| std::env::var(name).ok())?;
    let names = [
        (environment::JOB_NAME, &job.key.name),
        (environment::JOB_NAMESPACE, &job.key.namespace),
    ];
    variables.extend(names.map(|(name, value)| (name.to_owned(), value.clone())));
    Ok((command, variables))
}

/// How the agent runs a script of mode Restart.
fn restarting(script: &Script) -> [(String, String); 3] {
    let Script {
        command: _,
        collateral_window,
        leave_grace,
    } = script;
    let seconds = |duration: &Duration| duration.as_secs().to_string();
    [
        (environment::MODE, Mode::Restart.to_string()),
        (
            environment::COLLATERAL_WINDOW_SECONDS,
            seconds(collateral_window),
        ),
        (environment::GRACE_SECONDS, seconds(leave_grace)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
}

/// What the processes are told of checkpoints. The job's own volume is one of a cluster: here they are in `home`.
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
            number(wanted.seconds()),
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
