//! Processes that a worker's agent has started: a person may want to end one, and see what happens.

use std::path::Path;

/// The children of a process, in the order of their numbers. None is known where the kernel does not tell.
pub(super) fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let mut pids: Vec<u32> = tasks.flat_map(|task| of_thread(&task.path())).collect();
    pids.sort_unstable();
    pids
}

fn of_thread(task: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(task.join("children")).unwrap_or_default();
    let pids = text.split_whitespace();
    pids.filter_map(|pid| pid.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_is_known_whichever_thread_started_it() {
        let child = std::thread::spawn(|| Command::new("sleep").arg("60").spawn().unwrap());
        // The kernel counts it to another thread when the one that started it has ended.
        let mut child = child.join().unwrap();
        assert!(children(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children(std::process::id()).contains(&child.id()));
    }
}
