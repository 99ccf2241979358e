//! Whether the kernel has killed a process of this container for lack of memory, from the counters
//! of its control group.

use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";

/// Number of processes of this control group that any OOM killer has killed; `None` if the kernel
/// does not report it.
pub(super) fn oom_kills() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut files = files(&own).into_iter();
    files.find_map(|file| count(&std::fs::read_to_string(file).ok()?))
}

/// Files that may contain the count. In a pod the root is the container's own
/// group, whatever `/proc` says.
fn files(own: &str) -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    // Version 2 of control groups has only one hierarchy.
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let named = path.map(|path| root.join(path).join("memory.events"));
    let version_1 = root.join("memory/memory.oom_control");
    named
        .into_iter()
        .chain([root.join("memory.events"), version_1])
        .collect()
}

fn count(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oom_kills_are_read_from_both_cgroup_versions() {
        let events = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n";
        assert_eq!(count(events), Some(2));
        assert_eq!(
            count("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"),
            Some(7)
        );
        assert_eq!(count("oom_kill_disable 0\n"), None);
        let named = files("12:cpu:/x\n0::/kubepods/a\n").remove(0);
        assert_eq!(named, Path::new("/sys/fs/cgroup/kubepods/a/memory.events"));
        assert_eq!(files("").len(), 2);
    }
}
