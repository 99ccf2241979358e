//! The status file of one process, written by rename. During fast steps it is written at a limited
//! rate. A thread then writes the last of these states even if no step follows. Otherwise the agent
//! would report an old step of a process that evaluates or hangs right after a burst of steps.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use roundhouse_contract::RankStatus;

use super::files::replace;

/// The status file. Its thread ends with it.
#[derive(Debug)]
pub(super) struct StatusFile {
    shared: Arc<Shared>,
    has_thread: bool,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    slot: Mutex<Slot>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Slot {
    /// The status to write, and when.
    pending: Option<(RankStatus, Instant)>,
    is_closed: bool,
}

impl StatusFile {
    pub(super) fn new(path: PathBuf) -> Self {
        let shared = Shared {
            path,
            slot: Mutex::default(),
            changed: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
            has_thread: false,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Writes a status now and drops a pending one.
    pub(super) fn write(&self, status: &RankStatus) -> io::Result<()> {
        // Hold the lock, so that the thread writes nothing older after this.
        let mut slot = self.shared.lock();
        slot.pending = None;
        write(&self.shared.path, status)
    }

    /// Writes a status when it is due, unless a newer one is written before.
    pub(super) fn write_at(&mut self, due: Instant, status: RankStatus) {
        let before = self.shared.lock().pending.replace((status, due));
        if before.is_none_or(|(_, before)| due < before) {
            // Otherwise the thread wakes at that time anyway.
            self.shared.changed.notify_one();
        }
        if !std::mem::replace(&mut self.has_thread, true) {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("status".to_owned());
            // Without a thread the next write shows the status.
            let _ = thread.spawn(move || shared.write_what_is_due());
        }
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_what_is_due(&self) {
        let mut slot = self.lock();
        while !slot.is_closed {
            let now = Instant::now();
            slot = match slot.pending.take() {
                None => self
                    .changed
                    .wait(slot)
                    .unwrap_or_else(PoisonError::into_inner),
                Some((status, due)) if due <= now => {
                    // The next failed write is reported.
                    let _ = write(&self.path, &status);
                    slot
                }
                Some((status, due)) => {
                    slot.pending = Some((status, due));
                    let waited = self.changed.wait_timeout(slot, due - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

fn write(path: &Path, status: &RankStatus) -> io::Result<()> {
    replace(path, &serde_json::to_string(status)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::files::tests::status;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn step_in(file: &StatusFile) -> Option<u64> {
        let text = std::fs::read_to_string(file.path()).ok()?;
        Some(serde_json::from_str::<RankStatus>(&text).unwrap().step)
    }

    #[test]
    fn last_step_of_a_burst_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = StatusFile::new(directory.path().join("rank-0.json"));
        file.write(&status(27)).unwrap();
        let due = Instant::now() + Duration::from_millis(50);
        for step in 28..=40 {
            file.write_at(due, status(step));
        }
        let started = Instant::now();
        while step_in(&file) != Some(40) {
            assert!(started.elapsed() < DEADLINE, "{:?}", step_in(&file));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn pending_status_never_replaces_newer_one() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = StatusFile::new(directory.path().join("rank-0.json"));
        for step in 0..500 {
            file.write_at(Instant::now(), status(2 * step));
            file.write(&status(2 * step + 1)).unwrap();
            assert_eq!(step_in(&file), Some(2 * step + 1));
        }
        let shared = Arc::downgrade(&file.shared);
        drop(file);
        let started = Instant::now();
        while shared.strong_count() > 0 {
            assert!(started.elapsed() < DEADLINE, "the thread has not ended");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
