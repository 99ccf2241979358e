//! Starts one process of the worker.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use roundhouse_contract::environment::END_WITH_PARENT;
use rustix::process::Pid;

use super::failure::Failure;
use super::user;
use crate::bound;
use crate::logs::{LastLines, Source, forward};
use crate::options::Options;

/// Idle OpenMP threads spin by default, which slows down other processes on shared cores. A setting
/// of the user has priority.
fn threads_that_sleep() -> Option<(&'static str, &'static str)> {
    const POLICY: &str = "OMP_WAIT_POLICY";
    std::env::var_os(POLICY)
        .is_none()
        .then_some((POLICY, "PASSIVE"))
}

/// Python buffers lines if its output is a pipe. They would arrive late, and the last lines of a
/// killed process would be lost. A setting of the user has priority.
fn lines_at_once() -> Option<(&'static str, &'static str)> {
    const UNBUFFERED: &str = "PYTHONUNBUFFERED";
    std::env::var_os(UNBUFFERED)
        .is_none()
        .then_some((UNBUFFERED, "1"))
}

/// Variables of a login that a script's image may lack.
fn of_a_login(options: &Options) -> Vec<(&'static str, String)> {
    if !options.runs_script() {
        return Vec::new();
    }
    user::variables(|name| std::env::var(name).ok())
}

/// Returns the parent process with which this one must end, if there is one.
pub(crate) fn parent_to_end_with() -> Option<Pid> {
    let text = std::env::var(END_WITH_PARENT).ok()?;
    Pid::from_raw(text.parse().ok()?)
}

/// If the agent ends with its parent process, its own processes end with the agent.
fn end_with_this() -> Option<(&'static str, String)> {
    parent_to_end_with().map(|_| (END_WITH_PARENT, std::process::id().to_string()))
}

/// Builds the command of a program. If the agent ends with its parent process, the program must end
/// with the agent, even if the agent is killed. In a pod the kernel ensures this.
fn command(program: &str) -> Command {
    if parent_to_end_with().is_none() {
        return Command::new(program);
    }
    // In the started process, this path is the agent's own program.
    let mut command = Command::new("/proc/self/exe");
    command.args([bound::TASK, "--", program]);
    command
}

pub(crate) fn start_process(
    options: &Options,
    environment: BTreeMap<&'static str, String>,
    local_rank: u32,
    last: &LastLines,
    readers: &mut Vec<JoinHandle<()>>,
) -> Result<i32, Failure> {
    let (program, arguments) = options
        .command
        .split_first()
        .ok_or_else(|| Failure::Spawn {
            program: "nothing".to_owned(),
            source: std::io::ErrorKind::InvalidInput.into(),
        })?;
    let mut child = command(program)
        .args(arguments)
        .envs(environment)
        .envs(threads_that_sleep())
        .envs(lines_at_once().filter(|_| options.runs_script()))
        .envs(of_a_login(options))
        .envs(end_with_this())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|source| Failure::Spawn {
            program: program.clone(),
            source,
        })?;
    let source = Source {
        worker_index: options.worker_index,
        local_rank,
        run_dir: options.run_dir.clone(),
    };
    if let Some(stdout) = child.stdout.take() {
        let source = source.clone();
        readers.push(std::thread::spawn(move || {
            forward(stdout, std::io::stdout(), source, None)
        }));
    }
    if let Some(stderr) = child.stderr.take() {
        let last = last.clone();
        readers.push(std::thread::spawn(move || {
            forward(stderr, std::io::stderr(), source, Some(&last))
        }));
    }
    // Drop the handle without waiting: `reap` collects the process by its pid.
    i32::try_from(child.id()).map_err(|_| Failure::Spawn {
        program: program.clone(),
        source: std::io::ErrorKind::InvalidData.into(),
    })
}
