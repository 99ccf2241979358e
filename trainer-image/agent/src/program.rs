//! Runs the task of the command line.

use roundhouse_contract::environment::DEFAULT_CONNECT_TIMEOUT_SECONDS;

use crate::options::{Cli, Task};
use crate::say::{answer, say_plainly};
use crate::{bound, install, supervisor};

/// Runs the task and returns the exit code. An agent outside of a pod starts its own program again
/// to become a script, so every agent program has all tasks.
#[must_use]
pub fn run(Cli { task, options }: Cli) -> i32 {
    match task {
        None => supervisor::run(&options),
        Some(Task::Environment) => {
            let mut settings =
                supervisor::device_settings(DEFAULT_CONNECT_TIMEOUT_SECONDS).into_iter();
            let written = settings.try_for_each(|(name, value)| answer(&format!("{name}={value}")));
            i32::from(written.is_err())
        }
        Some(Task::Bound { command }) => bound::run(&command),
        Some(Task::Install { directory }) => match install::install(&directory) {
            Ok(()) => 0,
            Err(error) => {
                say_plainly(&format!(
                    "cannot install into {}: {error}",
                    directory.display()
                ));
                1
            }
        },
    }
}
