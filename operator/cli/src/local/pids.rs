//! Pids of the processes that a worker's agent has started, so that the user can kill one to test
//! recovery.

use std::path::Path;

/// Pids of a process's children, in ascending order; empty if the kernel does not list them.
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
    fn children_of_all_threads_are_listed() {
        let child = std::thread::spawn(|| Command::new("sleep").arg("60").spawn().unwrap());
        // When the thread that started the child ends, the kernel moves the child to another
        // thread.
        let mut child = child.join().unwrap();
        assert!(children(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children(std::process::id()).contains(&child.id()));
    }
}
