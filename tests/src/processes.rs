//! Lists the processes of this machine with their parents, and sends signals to them.

use rustix::process::{Pid, Signal, kill_process};

/// Sends a signal to a process. Returns whether the process existed.
#[must_use]
pub fn send(pid: u32, signal: Signal) -> bool {
    let pid = Pid::from_raw(pid.cast_signed());
    pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// The process ids of all processes but zombies, each with its parent's.
#[must_use]
pub fn parents() -> Vec<(u32, u32)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may contain spaces. After it come the state and the parent.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        (state != "Z").then_some((pid, parent))
    })
    .collect()
}
