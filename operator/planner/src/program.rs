//! What the workers run: the built-in trainer, or the user's own command.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use roundhouse_api::spec::Elastic;
use roundhouse_contract::labels::TRAINER_CONTAINER;
use roundhouse_contract::{Mode, OnScale, TrainerConfig};

use crate::invalid::{InvalidSpec, invalid};

#[derive(Clone, Debug, PartialEq)]
pub enum Program {
    /// The built-in trainer, whose processes stay for all generations.
    Trainer(Box<TrainerConfig>),
    /// The template's own command, whose processes join with the Python package `roundhouse`
    /// and stay across generations.
    Joining {
        /// `command` and `args` of the container `trainer`, as one list.
        command: Vec<String>,
        /// Whether the processes of a worker together hold one copy of the state:
        /// `workers.sharded`.
        sharded: bool,
    },
    /// The template's own command, which restarts in each generation.
    Script(Script),
}

/// The user's own command without knowledge of generations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// `command` and `args` of the container `trainer`, as one list.
    pub command: Vec<String>,
    /// Time in which an error may turn out to be a consequence of a lost peer.
    pub peer_failure_window: Duration,
    /// Time between SIGTERM and SIGKILL of a process: `elastic.leaveGraceSeconds`.
    pub leave_grace: Duration,
}

impl Program {
    /// How the program changes from one generation to the next.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        match self {
            Self::Trainer(_) | Self::Joining { .. } => Mode::InProcess,
            Self::Script(_) => Mode::Restart,
        }
    }

    /// The configuration of the built-in trainer, if the workers run it.
    #[must_use]
    pub fn trainer(&self) -> Option<&TrainerConfig> {
        match self {
            Self::Trainer(config) => Some(config),
            Self::Joining { .. } | Self::Script(_) => None,
        }
    }

    /// The user's own command and its arguments, if the workers run it. Its image does
    /// not contain the agent.
    #[must_use]
    pub fn own_command(&self) -> Option<&[String]> {
        match self {
            Self::Trainer(_) => None,
            Self::Joining {
                command,
                sharded: _,
            } => Some(command),
            Self::Script(script) => Some(&script.command),
        }
    }

    /// The user's own command that restarts in each generation, if the workers run one.
    #[must_use]
    pub const fn script(&self) -> Option<&Script> {
        match self {
            Self::Trainer(_) | Self::Joining { .. } => None,
            Self::Script(script) => Some(script),
        }
    }
}

/// The program of a spec that cannot run, for the workers that already run: it decides when their
/// training has ended. No pod is built from it. Without a trainer it is a script with mode Restart:
/// an unreadable spec has the default mode, and treating another script as one with mode Restart
/// does less harm than the reverse.
pub(crate) fn as_it_runs(trainer: Option<&TrainerConfig>, elastic: &Elastic) -> Program {
    match trainer {
        Some(config) => Program::Trainer(Box::new(config.clone())),
        None => Program::Script(of_command(Vec::new(), elastic)),
    }
}

/// Reads the program from the spec. Afterwards the template has a container named `trainer`.
pub(crate) fn of(
    trainer: Option<&TrainerConfig>,
    elastic: &Elastic,
    sharded: bool,
    template: &mut PodTemplateSpec,
) -> Result<Program, InvalidSpec> {
    // A new field must be read here, or where `ValidatedJob` gets it, so it does not compile
    // without a decision.
    let Elastic {
        mode,
        on_scale: _,
        scale_batch: _,
        join_window_seconds: _,
        peer_failure_window_seconds: _,
        leave_grace_seconds: _,
    } = elastic;
    check_on_scale(elastic, trainer.is_some())?;
    check_sharded(sharded, *mode, trainer.is_some())?;
    let spec = template.spec.get_or_insert_default();
    match (*mode, trainer) {
        (Mode::InProcess, Some(config)) => built_in(config, elastic, spec),
        (Mode::Restart, None) => Ok(Program::Script(of_command(
            own_command(*mode, spec)?,
            elastic,
        ))),
        (Mode::InProcess, None) => Ok(Program::Joining {
            command: own_command(*mode, spec)?,
            sharded,
        }),
        (Mode::Restart, Some(_)) => invalid(
            "spec.trainer",
            "leave it out: with spec.elastic.mode Restart the command of the container named trainer is run",
        ),
    }
}

/// Repeats the schema's rules for `onScale`, because the installed schema may be older.
fn check_on_scale(elastic: &Elastic, is_built_in: bool) -> Result<(), InvalidSpec> {
    match (elastic.on_scale, elastic.scale_batch) {
        (OnScale::ScaleBatch, None) => invalid(
            "spec.elastic.scaleBatch",
            "give referenceReplicas: the number of workers that spec.trainer.globalBatchSize is meant for",
        ),
        (OnScale::KeepGlobalBatch, Some(_)) => invalid(
            "spec.elastic.scaleBatch",
            "set spec.elastic.onScale to ScaleBatch, or leave it out",
        ),
        (OnScale::ScaleBatch, Some(scale)) if scale.reference_replicas == 0 => invalid(
            "spec.elastic.scaleBatch.referenceReplicas",
            "must be at least 1",
        ),
        (OnScale::ScaleBatch, Some(_)) if !is_built_in => invalid(
            "spec.elastic.onScale",
            "leave out ScaleBatch: it is for the built-in trainer; a script of your own knows its world size",
        ),
        (OnScale::ScaleBatch, Some(_)) | (OnScale::KeepGlobalBatch, None) => Ok(()),
    }
}

/// Repeats the schema's rule for `sharded`, because the installed schema may be older.
fn check_sharded(sharded: bool, mode: Mode, is_built_in: bool) -> Result<(), InvalidSpec> {
    const FIELD: &str = "spec.workers.sharded";
    match mode {
        _ if !sharded => Ok(()),
        _ if is_built_in => invalid(
            FIELD,
            "leave it out: each process of the built-in trainer has a copy of the model, and spec.trainer.parallel says \
             what they share; to train a model in shards, leave out spec.trainer and run a Python script that calls \
             roundhouse.join()",
        ),
        Mode::Restart => invalid(
            FIELD,
            "leave it out: with spec.elastic.mode Restart all processes of all workers restart together; to restart \
             only the worker that failed, set the mode to InProcess and call roundhouse.join() in the script",
        ),
        Mode::InProcess => Ok(()),
    }
}

fn built_in(
    config: &TrainerConfig,
    elastic: &Elastic,
    spec: &mut PodSpec,
) -> Result<Program, InvalidSpec> {
    if config.scale_batch.is_some() {
        return invalid(
            "spec.trainer.scaleBatch",
            "give spec.elastic.scaleBatch instead",
        );
    }
    config.validate().map_err(|error| {
        InvalidSpec::new(format!("spec.trainer.{}", error.field), error.message)
    })?;
    if place(spec).is_none() {
        let name = TRAINER_CONTAINER.to_owned();
        spec.containers.insert(
            0,
            Container {
                name,
                ..Container::default()
            },
        );
    }
    let at = place(spec).unwrap_or_default();
    let container = &spec.containers[at];
    if container.command.is_some() || container.args.is_some() {
        return invalid(
            path(at),
            "leave out command and args: the built-in trainer brings its own",
        );
    }
    Ok(Program::Trainer(Box::new(TrainerConfig {
        scale_batch: elastic.scale_batch,
        ..config.clone()
    })))
}

/// The template's command with its arguments.
fn own_command(mode: Mode, spec: &PodSpec) -> Result<Vec<String>, InvalidSpec> {
    let Some(at) = place(spec) else {
        return match mode {
            Mode::InProcess => invalid(
                "spec.trainer",
                "give it; or, to run a script of your own that calls roundhouse.join(), give spec.workers.template a \
                 container named trainer with image and command; or, for a script that runs under torchrun, also set \
                 spec.elastic.mode to Restart",
            ),
            Mode::Restart => invalid(
                "spec.workers.template.spec.containers",
                "with spec.elastic.mode Restart, give a container named trainer with image and command",
            ),
        };
    };
    let container = &spec.containers[at];
    if container.image.is_none() {
        return invalid(
            format!("{}.image", path(at)),
            "give the image of the script",
        );
    }
    let mut command = container.command.clone().unwrap_or_default();
    if command.is_empty() {
        return invalid(
            format!("{}.command", path(at)),
            "give it, such as [python, train.py]: the agent starts it, and cannot know the entry point of the image",
        );
    }
    command.extend(container.args.iter().flatten().cloned());
    Ok(command)
}

fn of_command(command: Vec<String>, elastic: &Elastic) -> Script {
    Script {
        command,
        peer_failure_window: seconds(elastic.peer_failure_window_seconds),
        leave_grace: seconds(elastic.leave_grace_seconds),
    }
}

fn seconds(number: u32) -> Duration {
    Duration::from_secs(u64::from(number))
}

fn place(spec: &PodSpec) -> Option<usize> {
    spec.containers
        .iter()
        .position(|container| container.name == TRAINER_CONTAINER)
}

fn path(at: usize) -> String {
    format!("spec.workers.template.spec.containers[{at}]")
}
