//! What is visible of a process from outside: its state, and where each of its threads waits.
//!
//! Reads `/proc` (see `proc(5)`). Only root may read kernel stacks; information that cannot be read
//! is omitted.

use std::path::Path;

/// Maximum number of threads in the dump.
const MAX_THREADS: usize = 128;
/// Informative lines of `status`.
const STATUS_KEYS: [&str; 9] = [
    "Name:",
    "State:",
    "PPid:",
    "TracerPid:",
    "VmRSS:",
    "Threads:",
    "SigBlk:",
    "voluntary_ctxt_switches:",
    "nonvoluntary_ctxt_switches:",
];

/// Describes a process in lines, from its directory in `/proc`.
#[must_use]
pub fn process(directory: &Path) -> Vec<String> {
    let mut lines = vec![status(directory)];
    let mut threads: Vec<_> = std::fs::read_dir(directory.join("task"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    threads.sort();
    for thread in threads.iter().take(MAX_THREADS) {
        lines.extend(self::thread(thread));
    }
    if threads.len() > MAX_THREADS {
        lines.push(format!("... and {} threads", threads.len() - MAX_THREADS));
    }
    lines
}

/// Joins the informative lines of `status`.
fn status(directory: &Path) -> String {
    let text = read(directory, "status").unwrap_or_default();
    let informative = text
        .lines()
        .filter(|line| STATUS_KEYS.iter().any(|key| line.starts_with(key)));
    let words = informative.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    words.collect::<Vec<_>>().join(", ")
}

/// Whether a signal has stopped a process. A process that a debugger holds has another state.
#[must_use]
pub fn is_stopped(directory: &Path) -> bool {
    let text = read(directory, "status").unwrap_or_default();
    state(&text).starts_with('T')
}

fn state(status: &str) -> &str {
    let mut lines = status.lines();
    let state = lines.find_map(|line| line.strip_prefix("State:"));
    state.unwrap_or_default().trim()
}

/// Describes a thread: name, state and wait channel, then its kernel stack if it is readable.
fn thread(directory: &Path) -> Vec<String> {
    let id = directory.file_name().unwrap_or_default().to_string_lossy();
    let text = |file| read(directory, file).unwrap_or_default().trim().to_owned();
    let mut line = format!("thread {id} {}: {}", text("comm"), state(&text("status")));
    match text("wchan").as_str() {
        "" | "0" => {}
        place => {
            line.push_str(" in ");
            line.push_str(place);
        }
    }
    let stack = text("stack");
    let frames = stack.lines().map(|frame| format!("  {}", frame.trim()));
    std::iter::once(line).chain(frames).collect()
}

fn read(directory: &Path, file: &str) -> Option<String> {
    let bytes = std::fs::read(directory.join(file)).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn dump_shows_threads_of_a_running_process_only() {
        let lines = process(Path::new("/proc/self"));
        assert!(lines[0].contains("State: "), "{lines:?}");
        let id = std::process::id();
        let main = format!("thread {id} ");
        assert!(
            lines.iter().any(|line| line.starts_with(&main)),
            "{lines:?}"
        );
        assert_eq!(process(Path::new("/proc/nonexistent")), [""]);
    }

    #[test]
    fn process_is_stopped_between_stop_and_continue() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let directory = PathBuf::from(format!("/proc/{}", child.id()));
        let pid = Pid::from_child(&child);
        for (signal, stopped) in [(Signal::STOP, true), (Signal::CONT, false)] {
            kill_process(pid, signal).unwrap();
            let begun = Instant::now();
            while is_stopped(&directory) != stopped {
                assert!(begun.elapsed() < Duration::from_secs(20));
                std::thread::yield_now();
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
