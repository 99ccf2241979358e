//! Counts the I/O between this process and the volume. A wait for a slow volume lasts as long as
//! bytes move; a wait for a volume that moves nothing is bounded.

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

/// Maximum number of bytes between two counts.
const CHUNK: usize = 1 << 20;
/// Maximum number of bytes per sync, because a sync does not report its progress.
const SYNC_EVERY: usize = 64 << 20;
/// Interval of the checks while a caller waits.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Counts progress: each byte, file and sync. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct IoWatch(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    moves: AtomicU64,
    num_read: AtomicU64,
}

impl IoWatch {
    /// Adds to the total progress.
    pub fn advance(&self, moves: usize) {
        self.0.moves.fetch_add(moves as u64, Ordering::Relaxed);
    }

    /// Total progress so far.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.0.moves.load(Ordering::Relaxed)
    }

    /// Number of bytes of checkpoint parts that were read so far.
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

    /// Opens a file for reading.
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

    /// Runs `work`, which may wait for the volume, in a thread, and calls `each` with the progress
    /// at each check. `None`: there was no progress for `io_timeout`. The thread is then abandoned,
    /// because it may be in a system call that no signal interrupts.
    ///
    /// # Errors
    /// The error of the operating system if it refuses the thread, and an error if the thread
    /// panics.
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
                Err(RecvTimeoutError::Timeout) if io_timeout.is_over(idle_timer.elapsed(self)) => {
                    left.behind();
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => each(self.moves()),
            }
        }
    }
}

/// Measures how long there has been no progress.
#[derive(Clone, Copy, Debug)]
pub struct IdleTimer {
    moves: u64,
    since: Instant,
}

impl IdleTimer {
    /// Starts at the current time.
    #[must_use]
    pub fn new(io_watch: &IoWatch) -> Self {
        Self {
            moves: io_watch.moves(),
            since: Instant::now(),
        }
    }

    /// Time since the last progress.
    pub fn elapsed(&mut self, io_watch: &IoWatch) -> Duration {
        if io_watch.moves() != self.moves {
            *self = Self::new(io_watch);
        }
        self.since.elapsed()
    }
}

/// A file that is read in chunks, each of which counts as progress.
pub(super) struct Reading<'io_watch> {
    file: File,
    io_watch: &'io_watch IoWatch,
}

impl Reading<'_> {
    /// Fills `into` from position `offset`.
    ///
    /// # Errors
    /// The error of the operating system, `UnexpectedEof` if the file ends before.
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

/// A file that is written in chunks, each of which counts as progress.
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
        // Takes longer than the timeout in total, and less between two steps of progress.
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
