//! Whether anything moves between this process and the volume. A volume that is slow is waited for, one
//! that has gone away not for ever; only what has moved tells them apart.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use roundhouse_elastic::IoTimeout;

use crate::blocking;
use crate::faults;

/// Most bytes between two beats.
const CHUNK: usize = 1 << 20;
/// Most bytes that one sync has to wait for: it cannot be seen how far a sync is.
const SYNC_EVERY: usize = 64 << 20;
/// How often it is looked at while somebody waits for it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Counts what moves: every byte, file and sync. Its clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct IoWatch(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    moves: AtomicU64,
    num_read: AtomicU64,
}

impl IoWatch {
    /// So much has moved.
    pub fn advance(&self, moves: usize) {
        self.0.moves.fetch_add(moves as u64, Ordering::Relaxed);
    }

    /// What has moved so far.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.0.moves.load(Ordering::Relaxed)
    }

    /// Bytes of checkpoints' parts that were read so far.
    #[must_use]
    pub fn num_read(&self) -> u64 {
        self.0.num_read.load(Ordering::Relaxed)
    }

    /// Writes a file and waits until it is durable.
    pub(super) fn write_durably(
        &self,
        path: &std::path::Path,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        faults::volume();
        let file = File::create(path)?;
        self.advance(1);
        let mut written = Written {
            file,
            io_watch: self,
            num_unsynced: 0,
        };
        write(&mut written)?;
        written.file.sync_all()?;
        self.advance(1);
        Ok(())
    }

    /// Opens a file to read it.
    pub(super) fn open(&self, path: &std::path::Path) -> io::Result<Reading<'_>> {
        faults::volume();
        faults::stale(path)?;
        let file = File::open(path)?;
        self.advance(1);
        Ok(Reading {
            file,
            io_watch: self,
        })
    }

    /// Has a thread do what waits for the volume; `each` is told now and then what has moved. `None`: nothing
    /// has for too long, and the thread is left to itself, since it may be where no signal reaches it.
    ///
    /// # Errors
    /// There is no thread to be had, or it panicked.
    pub fn wait_for<T: Send + 'static>(
        &self,
        io_timeout: IoTimeout,
        work: impl FnOnce() -> T + Send + 'static,
        mut each: impl FnMut(u64),
    ) -> io::Result<Option<T>> {
        let (done, results) = channel();
        let (end, left) = blocking::counted();
        std::thread::Builder::new()
            .name("volume".to_owned())
            .spawn(move || {
                let _end = end;
                done.send(work())
            })?;
        let mut idle_timer = IdleTimer::new(self);
        loop {
            match results.recv_timeout(POLL_INTERVAL) {
                Ok(result) => return Ok(Some(result)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the thread that reads it panicked"));
                }
                Err(RecvTimeoutError::Timeout) if io_timeout.is_over(idle_timer.look(self)) => {
                    left.behind();
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => each(self.moves()),
            }
        }
    }
}

/// For how long nothing has moved.
#[derive(Clone, Copy, Debug)]
pub struct IdleTimer {
    moves: u64,
    since: Instant,
}

impl IdleTimer {
    /// Begins now.
    #[must_use]
    pub fn new(io_watch: &IoWatch) -> Self {
        Self {
            moves: io_watch.moves(),
            since: Instant::now(),
        }
    }

    /// How long it has lasted.
    pub fn look(&mut self, io_watch: &IoWatch) -> Duration {
        if io_watch.moves() != self.moves {
            *self = Self::new(io_watch);
        }
        self.since.elapsed()
    }
}

/// A file that is read in steps small enough to see how far it is.
pub(super) struct Reading<'io_watch> {
    file: File,
    io_watch: &'io_watch IoWatch,
}

impl Reading<'_> {
    /// Fills a buffer from a position on.
    ///
    /// # Errors
    /// The file ends before, or the volume refuses.
    pub(super) fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut at = offset;
        for chunk in into.chunks_mut(CHUNK) {
            self.file.read_exact_at(chunk, at)?;
            at += chunk.len() as u64;
            self.io_watch.advance(chunk.len());
            let counts = &self.io_watch.0;
            counts
                .num_read
                .fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A file that is written in steps small enough to see it grow.
struct Written<'io_watch> {
    file: File,
    io_watch: &'io_watch IoWatch,
    num_unsynced: usize,
}

impl Write for Written<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        faults::volume();
        let written = self.file.write(&bytes[..bytes.len().min(CHUNK)])?;
        self.io_watch.advance(written);
        self.num_unsynced += written;
        if self.num_unsynced >= SYNC_EVERY {
            self.file.sync_data()?;
            self.io_watch.advance(1);
            self.num_unsynced = 0;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_written_and_read_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let bytes: Vec<u8> = (0..=255).cycle().take(5 * CHUNK / 2).collect();
        let io_watch = IoWatch::default();
        let write = |file: &mut dyn Write| file.write_all(&bytes);
        io_watch.write_durably(&path, write).unwrap();
        assert_eq!(io_watch.moves(), 2 + bytes.len() as u64);
        let mut read = vec![0; bytes.len()];
        io_watch.open(&path).unwrap().read_at(0, &mut read).unwrap();
        assert!(read == bytes);
        assert_eq!(io_watch.moves(), 3 + 2 * bytes.len() as u64);
    }

    #[test]
    fn only_a_writer_without_progress_is_abandoned() {
        let io_timeout = IoTimeout::new(Duration::from_millis(300));
        let io_watch = IoWatch::default();
        let shared = io_watch.clone();
        // Longer in all than the patience, and never so long without a move.
        let moves = move || {
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(50));
                shared.advance(1);
            }
            7
        };
        assert_eq!(
            io_watch.wait_for(io_timeout, moves, |_| {}).unwrap(),
            Some(7)
        );
        let (_kept, never) = channel::<()>();
        let hangs = move || never.recv();
        assert!(
            io_watch
                .wait_for(io_timeout, hangs, |_| {})
                .unwrap()
                .is_none()
        );
    }
}
