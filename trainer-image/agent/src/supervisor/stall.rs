//! Asks the watchdog now and then, and shows what can be seen of processes that hang before they are
//! ended.

use std::path::{Path, PathBuf};
use std::time::Duration;

use roundhouse_contract::RankStatus;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::processes::Processes;
use crate::dump;
use crate::watchdog::{self, Stall, Watchdog};

/// Processes that hang are not waited for as long as those that are asked to leave.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The watchdog and its clock.
pub(crate) struct Watch {
    watchdog: Watchdog,
    ticks: Interval,
}

impl Watch {
    pub(crate) fn new(watchdog: Watchdog) -> Self {
        let mut ticks = interval(watchdog::INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { watchdog, ticks }
    }

    /// Until the next look is due.
    pub(crate) async fn tick(&mut self) {
        self.ticks.tick().await;
    }

    /// Forgets the processes, which are started anew.
    pub(crate) fn forget(&mut self) {
        self.watchdog.forget();
    }

    /// Forgets one process, which is started anew.
    pub(crate) fn forget_one(&mut self, local_rank: u32) {
        self.watchdog.forget_one(local_rank);
    }

    /// Looks at all processes that run; if one hangs, shows all of them.
    pub(crate) fn look(
        &mut self,
        processes: &Processes,
        status: impl Fn(u32) -> Option<RankStatus>,
    ) -> Option<Stall> {
        let said = processes.running().map(|(_, local)| (local, status(local)));
        let stall = self.watchdog.look(std::time::Instant::now(), said)?;
        eprintln!(
            "[agent] process {} hangs: {}",
            stall.local_rank,
            stall.message().message
        );
        for (pid, local_rank) in processes.running() {
            let said = status(local_rank).map_or_else(
                || "nothing".to_owned(),
                |said| serde_json::to_string(&said).unwrap_or_default(),
            );
            eprintln!("[agent] process {local_rank} (pid {pid}) said last: {said}");
            for line in dump::process(&proc_of(pid)) {
                eprintln!("[agent]   {line}");
            }
        }
        Some(stall)
    }
}

fn proc_of(pid: i32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}
