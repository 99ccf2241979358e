//! Real processes that leave the group, the session and the parent in which they were started.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::{Duration, Instant};

use roundhouse_process_tree::{
    Process, adopt_orphans, collect_orphans, descendants, is_ancestor, processes, send_all,
    variable,
};
use rustix::process::Signal;

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Each of three processes starts another one in its own session. The first two end at once.
const DAEMON: &str =
    "setsid sh -c 'setsid sh -c \"trap : TERM; while :; do sleep 0.02; done\" & ' & ";

fn marked(descendants: &[Process]) -> Vec<Process> {
    let is_marked = |it: &&Process| variable(it.pid, "MARK").as_deref() == Some("daemon");
    descendants.iter().filter(is_marked).copied().collect()
}

#[test]
fn orphan_in_its_own_session_stays_a_descendant() {
    adopt_orphans().unwrap();
    assert!(is_ancestor(
        std::os::unix::process::parent_id().cast_signed()
    ));
    assert!(!is_ancestor(std::process::id().cast_signed()));
    let mut shell = Command::new("sh");
    let mut shell = shell
        .args(["-c", DAEMON])
        .env("MARK", "daemon")
        .spawn()
        .unwrap();
    let first = shell.id().cast_signed();
    shell.wait().unwrap();
    let own = std::process::id().cast_signed();
    let mut daemon = None;
    until("the daemon is adopted", || {
        daemon = marked(&descendants())
            .into_iter()
            .find(|it| it.parent == own && it.group != first);
        daemon.is_some()
    });
    // The daemon catches SIGTERM, and its `sleep` processes start and end.
    send_all(&descendants(), Signal::TERM);
    until("all have ended", || {
        send_all(&descendants(), Signal::KILL);
        collect_orphans(&processes(), &[]);
        descendants().is_empty()
    });
}
