//! Runs the watchdog periodically, and logs what is visible of processes that hang before they are
//! ended.

use std::path::{Path, PathBuf};
use std::time::Duration;

use roundhouse_contract::RankStatus;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::processes::Processes;
use crate::dump;
use crate::say::say;
use crate::watchdog::{self, Seen, Stall, Watchdog};

/// Time between SIGTERM and SIGKILL for processes that hang.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The watchdog and its clock.
pub(crate) struct Watch {
    watchdog: Watchdog,
    ticks: Interval,
    /// Directory of the status files that the processes write.
    run_dir: PathBuf,
    /// Whether the log already says that they cannot be written.
    has_warned: bool,
}

impl Watch {
    pub(crate) fn new(watchdog: Watchdog, run_dir: &Path) -> Self {
        let mut ticks = interval(watchdog::INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            watchdog,
            ticks,
            run_dir: run_dir.to_owned(),
            has_warned: false,
        }
    }

    /// Waits until the next check is due.
    pub(crate) async fn tick(&mut self) {
        self.ticks.tick().await;
    }

    /// Drops what is known of all processes, because they are restarted.
    pub(crate) fn forget(&mut self) {
        self.watchdog.forget();
    }

    /// Drops what is known of one process, because it is restarted.
    pub(crate) fn forget_one(&mut self, local_rank: u32) {
        self.watchdog.forget_one(local_rank);
    }

    /// The longest step of the processes; zero before the first.
    pub(crate) fn longest_step(&self) -> Duration {
        self.watchdog.longest_step()
    }

    /// Checks all running processes; if one hangs, logs all of them. No process is judged while
    /// statuses cannot be written, because then they stay the same.
    pub(crate) fn look(
        &mut self,
        processes: &Processes,
        status: impl Fn(u32) -> Option<RankStatus>,
    ) -> Option<Stall> {
        let seen = processes.running().map(|(pid, local_rank)| Seen {
            local_rank,
            status: status(local_rank),
            is_stopped: dump::is_stopped(&proc_of(pid)),
        });
        let stall = self.watchdog.look(std::time::Instant::now(), seen);
        if let Err(error) = try_to_write(&self.run_dir) {
            self.watchdog.excuse_all();
            if !std::mem::replace(&mut self.has_warned, true) {
                say(&format!(
                    "{}: {error}: while it cannot be written, no process counts as hung",
                    self.run_dir.display()
                ));
            }
            return None;
        }
        self.has_warned = false;
        let stall = stall?;
        say(&format!(
            "process {} hangs: {}",
            stall.local_rank,
            stall.message().message
        ));
        for (pid, local_rank) in processes.running() {
            let said = status(local_rank).map_or_else(
                || "nothing".to_owned(),
                |said| serde_json::to_string(&said).unwrap_or_default(),
            );
            say(&format!(
                "process {local_rank} (pid {pid}) last status: {said}"
            ));
            for line in dump::process(&proc_of(pid)) {
                say(&format!("  {line}"));
            }
        }
        Some(stall)
    }
}

fn proc_of(pid: i32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Writes as many bytes as the largest status has, and removes the file.
fn try_to_write(run_dir: &Path) -> std::io::Result<()> {
    let probe = run_dir.join("agent.probe");
    let written = std::fs::write(&probe, [b' '; 4 << 10]);
    let _ = std::fs::remove_file(probe);
    written
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::Phase;
    use roundhouse_contract::environment::CollectiveTimeouts;

    use super::*;
    use crate::watchdog::{Limits, Policy};

    #[tokio::test]
    async fn unwritable_statuses_do_not_count_as_a_hang() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        let limits = Limits {
            policy: Policy::from_seconds(Some(1)),
            timeouts: CollectiveTimeouts::default(),
            runs_script: false,
        };
        let mut processes = Processes::default();
        processes.add_foreign(std::process::id().cast_signed(), 0);
        let mut watch = Watch::new(Watchdog::new(limits), &run_dir);
        // While the directory does not exist it cannot be written, not even by root.
        assert_eq!(stall_after_the_limit(&mut watch, &processes), None);
        std::fs::create_dir(&run_dir).unwrap();
        let stall = stall_after_the_limit(&mut watch, &processes).unwrap();
        assert!(stall.idle < Duration::from_secs(2), "{stall:?}");
        assert_eq!(std::fs::read_dir(&run_dir).unwrap().count(), 0);
    }

    /// Checks for longer than the limit.
    fn stall_after_the_limit(watch: &mut Watch, processes: &Processes) -> Option<Stall> {
        let status = RankStatus {
            phase: Phase::Done,
            rank: Some(0),
            generation: 1,
            step: 9,
            forming: 0,
            volume_moves: 0,
            patience_seconds: 0,
            progress: None,
        };
        (0..8).find_map(|_| {
            std::thread::sleep(Duration::from_millis(250));
            watch.look(processes, |_| Some(status.clone()))
        })
    }
}
