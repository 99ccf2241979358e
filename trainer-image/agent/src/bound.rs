//! Runs a program in the place of this one that ends when the agent does, even if the agent is killed: what a parent asks
//! for its child between fork and exec, without unsafe code. For agents outside of a pod.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use roundhouse_contract::environment::{LOCAL_RANK, RUN_DIR};
use roundhouse_contract::{ExitCode, Reason, TerminationMessage, paths};
use rustix::io::Errno;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::say::say_plainly;
use crate::supervisor::{cannot_start, is_text_without_interpreter, parent_to_end_with};

/// The task's name on the command line.
pub const TASK: &str = "bound";

/// Becomes the program; returns the exit code if it cannot.
#[must_use]
pub fn run(command: &[String]) -> i32 {
    // The kernel keeps this across exec.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if getppid() != parent_to_end_with() {
        return ExitCode::Left.code();
    }
    let Some((program, arguments)) = command.split_first() else {
        return ExitCode::ConfigInvalid.code();
    };
    // As in a pod, whose agent starts the program by another call.
    let error = if is_text_without_interpreter(program) {
        Errno::NOEXEC.into()
    } else {
        Command::new(program).args(arguments).exec()
    };
    let (code, message) = cannot_start(program, error);
    leave_words(code, message);
    code.code()
}

/// Where the agent looks for the words of a process that has ended.
fn leave_words(code: ExitCode, message: String) {
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
