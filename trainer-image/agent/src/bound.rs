//! Replaces this process with a program that ends when the agent ends, even if the agent is killed.
//! A parent can set this for its child between fork and exec only with unsafe code; this extra
//! program needs none. It serves agents outside of a pod.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use roundhouse_contract::environment::{LOCAL_RANK, RUN_DIR};
use roundhouse_contract::{ExitCode, Reason, TerminationMessage, paths};
use rustix::io::Errno;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::say::say_plainly;
use crate::supervisor::{cannot_start, is_text_without_interpreter, parent_to_end_with};

/// Name of the task on the command line.
pub const TASK: &str = "bound";

/// Replaces this process with the program; returns the exit code if that fails.
#[must_use]
pub fn run(command: &[String]) -> i32 {
    // The kernel keeps this setting across exec.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if getppid() != parent_to_end_with() {
        return ExitCode::Left.code();
    }
    let Some((program, arguments)) = command.split_first() else {
        return ExitCode::ConfigInvalid.code();
    };
    // Reject such a file as in a pod, where the agent starts the program with another call.
    let error = if is_text_without_interpreter(program) {
        Errno::NOEXEC.into()
    } else {
        Command::new(program).args(arguments).exec()
    };
    let (code, message) = cannot_start(program, error);
    write_failure(code, message);
    code.code()
}

/// Writes the reason where the agent looks for reports of ended processes.
fn write_failure(code: ExitCode, message: String) {
    let local_rank = std::env::var(LOCAL_RANK).ok();
    let local_rank = local_rank.and_then(|text| text.parse().ok()).unwrap_or(0);
    let Some(run_dir) = std::env::var_os(RUN_DIR).map(PathBuf::from) else {
        say_plainly(&message);
        return;
    };
    let words = TerminationMessage {
        reason: Reason::of(code),
        rank: None,
        generation: 0,
        step: 0,
        message,
        progress: None,
    };
    let file = paths::rank_failure(&run_dir, local_rank);
    if let Ok(json) = words.to_json() {
        let _ = std::fs::write(file, json);
    }
}
