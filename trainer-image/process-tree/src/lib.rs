//! Finds the descendants of a process in `/proc` and sends signals to them.
//!
//! A process group does not contain everything that a program starts: torchrun, accelerate,
//! `setsid` and daemons put their children into groups and sessions of their own. But they stay
//! descendants: if a parent ends, the kernel gives its children to the nearest ancestor that adopts
//! orphans (see [`adopt_orphans`]). This crate does not decide when a process ends.

use rustix::io;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal,
    set_child_subreaper, waitpid,
};

mod stat;

pub use stat::Process;

/// Lets this process adopt orphans among its descendants from now on, as PID 1 does. The
/// caller must collect them.
///
/// # Errors
/// Returns the error of the kernel if it refuses.
pub fn adopt_orphans() -> io::Result<()> {
    set_child_subreaper(Some(rustix::process::getpid()))
}

/// Returns all processes of the PID namespace, from one scan of `/proc`. A process that ends during
/// the scan may be missing.
#[must_use]
pub fn processes() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(stat::read).collect()
}

/// Returns the running processes below `root`, parents before their children.
#[must_use]
pub fn below(root: i32, all: &[Process]) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        // A pid may appear twice if it is reused during the scan.
        let children = all.iter().filter(|it| it.parent == parent && it.runs);
        let new = children.filter(|it| !found.iter().any(|known| known.pid == it.pid));
        let new: Vec<Process> = new.copied().collect();
        parents.extend(new.iter().map(|it| it.pid));
        found.extend(new);
    }
    found
}

/// Returns the running descendants of this process.
#[must_use]
pub fn descendants() -> Vec<Process> {
    below(own_pid(), &processes())
}

/// Whether a process is an ancestor of this one. If an ancestor that adopts orphans is no longer
/// one, it has ended.
#[must_use]
pub fn is_ancestor(pid: i32) -> bool {
    let mut at = own_pid();
    // A chain that changes while it is read must not loop indefinitely.
    for _ in 0..1_000 {
        match stat::read(at) {
            Some(process) if process.parent == pid => return true,
            Some(process) if process.parent > 0 => at = process.parent,
            Some(_) | None => return false,
        }
    }
    false
}

/// Sends a signal to exactly this process, never to a later one with the same pid.
pub fn send(process: &Process, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else {
        return;
    };
    let opened = pidfd_open(pid, PidfdFlags::empty());
    // The descriptor refers to the process that has the pid now; check that it is still the same
    // process.
    if stat::read(process.pid).is_none_or(|now| now.started != process.started) {
        return;
    }
    // The process may end at this moment.
    let _ = match opened {
        Ok(file) => pidfd_send_signal(file, signal),
        // The kernel or the sandbox has no pidfds.
        Err(io::Errno::NOSYS | io::Errno::PERM | io::Errno::INVAL) => kill_process(pid, signal),
        Err(error) => Err(error),
    };
}

/// Sends a signal to all of the processes.
pub fn send_all(processes: &[Process], signal: Signal) {
    for process in processes {
        send(process, signal);
    }
}

/// Collects the children of this process that have ended, except those in `others`, for
/// which other code waits.
pub fn collect_orphans(all: &[Process], others: &[i32]) {
    let own = own_pid();
    let orphans = all.iter().filter(|it| it.parent == own);
    for orphan in orphans.filter(|it| !others.contains(&it.pid)) {
        let _ = waitpid(Pid::from_raw(orphan.pid), WaitOptions::NOHANG);
    }
}

/// Returns a variable of the environment with which a process was started, if it is readable.
#[must_use]
pub fn variable(pid: i32, name: &str) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let variables = environment.split(|byte| *byte == 0);
    let mut values =
        variables.filter_map(|it| it.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    String::from_utf8(values.next()?.to_vec()).ok()
}

fn own_pid() -> i32 {
    std::process::id().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        Process {
            pid,
            parent,
            group: pid,
            started: 0,
            runs: true,
        }
    }

    #[test]
    fn descendants_are_found_in_any_order() {
        let mut all = [
            process(40, 30),
            process(20, 10),
            process(30, 20),
            process(50, 1),
            process(21, 10),
            process(10, 1),
        ];
        let pids = |all: &[Process]| {
            let mut pids: Vec<i32> = below(10, all).iter().map(|it| it.pid).collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(pids(&all), [20, 21, 30, 40]);
        // A process that has ended and was not collected has no children left.
        all[4].runs = false;
        assert_eq!(pids(&all), [20, 30, 40]);
    }

    #[test]
    fn cycle_of_parents_is_followed_once() {
        let all = [process(20, 30), process(30, 20), process(20, 10)];
        assert_eq!(below(10, &all).len(), 2);
    }
}
