//! Parses a line of `/proc/PID/stat` as described in `proc_pid_stat(5)`.

/// A process, as the kernel shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id, which a later process may reuse.
    pub pid: i32,
    /// Process id of the parent.
    pub parent: i32,
    /// Id of its process group.
    pub group: i32,
    /// Start time in clock ticks since the start of the machine. Together with the
    /// pid it is unique.
    pub started: u64,
    /// False if the process has ended and its parent has not collected it.
    pub runs: bool,
}

/// Reads a process that exists.
pub(crate) fn read(pid: i32) -> Option<Process> {
    let line = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(pid, &String::from_utf8_lossy(&line))
}

/// The name is in parentheses and may contain any character.
fn parse(pid: i32, line: &str) -> Option<Process> {
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
    // The first of these fields is field 3 of the manual.
    let field = |number: usize| fields.get(number - 3).copied();
    let state = field(3)?;
    let num_threads: u32 = field(20)?.parse().ok()?;
    Some(Process {
        pid,
        parent: field(4)?.parse().ok()?,
        group: field(5)?.parse().ok()?,
        started: field(22)?.parse().ok()?,
        // The first thread of a process may end before the others.
        runs: !matches!(state, "Z" | "X") || num_threads > 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = "0 -1 4194560 1 0 0 0 0 0 0 0 20 0";

    #[test]
    fn name_with_parentheses_and_spaces_is_skipped() {
        let line = format!("17 (a) Z (b) S 5 16 15 {REST} 1 0 4711 0 0");
        let expected = Process {
            pid: 17,
            parent: 5,
            group: 16,
            started: 4711,
            runs: true,
        };
        assert_eq!(parse(17, &line), Some(expected));
    }

    #[test]
    fn zombie_runs_only_if_other_threads_do() {
        for (threads, runs) in [(1, false), (3, true)] {
            let line = format!("17 (x) Z 5 16 15 {REST} {threads} 0 4711 0 0");
            assert_eq!(parse(17, &line).map(|it| it.runs), Some(runs));
        }
        assert_eq!(parse(17, "17 (x) S 5"), None);
    }

    #[test]
    fn own_process_is_read() {
        let own = read(std::process::id().cast_signed()).unwrap();
        assert!(own.runs && own.started > 0);
        assert_eq!(
            own.parent,
            std::os::unix::process::parent_id().cast_signed()
        );
    }
}
