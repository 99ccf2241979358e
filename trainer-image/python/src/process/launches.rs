//! The launch of a process: from the environment that an agent sets, or alone with the arguments of
//! `rh.join`.

use std::path::PathBuf;

use roundhouse_contract::environment::checkpoint::DEFAULT_KEEP;
use roundhouse_contract::environment::{
    CheckpointEnvironment, EnvironmentInvalid, LaunchEnvironment, MEMBERSHIP_FILE,
};
use roundhouse_member::Launch;
use roundhouse_member::launch::Source;

/// Whether an agent has started this process.
pub(super) fn has_agent() -> bool {
    variable(MEMBERSHIP_FILE).is_some()
}

/// The launch of a process of an agent.
pub(super) fn of_agent() -> Result<Launch, EnvironmentInvalid> {
    let launch = LaunchEnvironment::read(variable).and_then(Launch::from_environment);
    launch.and_then(completed)
}

/// The launch of a process that trains alone.
pub(super) fn alone(
    checkpoint: Option<CheckpointEnvironment>,
) -> Result<Launch, EnvironmentInvalid> {
    let alone = Launch::alone(PathBuf::new(), PathBuf::new(), None);
    completed(Launch {
        checkpoint,
        ..alone
    })
}

/// The checkpoints of a process that trains alone.
pub(super) fn checkpoints(
    dir: PathBuf,
    every_steps: Option<u64>,
    every_seconds: Option<u64>,
    keep: Option<u32>,
) -> CheckpointEnvironment {
    CheckpointEnvironment {
        dir,
        every_steps,
        every_seconds,
        keep: keep.unwrap_or(DEFAULT_KEEP),
        best: None,
        job_uid: None,
        local: None,
    }
}

fn completed(launch: Launch) -> Result<Launch, EnvironmentInvalid> {
    launch.with_settings(variable).map(in_place)
}

/// Makes the paths of a launch absolute, because a script may change its directory.
fn in_place(mut launch: Launch) -> Launch {
    let fix = |path: &mut PathBuf| {
        if let Ok(absolute) = std::path::absolute(&*path) {
            *path = absolute;
        }
    };
    if let Some(checkpoint) = &mut launch.checkpoint {
        fix(&mut checkpoint.dir);
    }
    if let Some(run_dir) = &mut launch.run_dir {
        fix(run_dir);
    }
    if let Source::Membership { file, .. } = &mut launch.source {
        fix(file);
    }
    launch
}

pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}
