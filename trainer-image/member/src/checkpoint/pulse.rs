//! Whether anything moves between this process and the volume. A volume that is slow is waited for, one
//! that has gone away not for ever; only what has moved tells them apart.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use roundhouse_elastic::Patience;

use crate::blocking;
use crate::faults;

/// Most bytes between two beats.
const CHUNK: usize = 1 << 20;
/// Most bytes that one sync has to wait for: it cannot be seen how far a sync is.
const SYNC_EVERY: usize = 64 << 20;
/// How often it is looked at while somebody waits for it.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Counts what moves: every byte, file and sync. Its clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    moves: AtomicU64,
    num_read: AtomicU64,
}

impl Pulse {
    /// So much has moved.
    pub fn beat(&self, moves: usize) {
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
        self.beat(1);
        let mut written = Written {
            file,
            pulse: self,
            num_unsynced: 0,
        };
        write(&mut written)?;
        written.file.sync_all()?;
        self.beat(1);
        Ok(())
    }

    /// Opens a file to read it.
    pub(super) fn open(&self, path: &std::path::Path) -> io::Result<Reading<'_>> {
        faults::volume();
        faults::stale(path)?;
        let file = File::open(path)?;
        self.beat(1);
        Ok(Reading { file, pulse: self })
    }

    /// Has a thread do what waits for the volume; `each` is told now and then what has moved. `None`: nothing
    /// has for too long, and the thread is left to itself, since it may be where no signal reaches it.
    ///
    /// # Errors
    /// There is no thread to be had, or it panicked.
    pub fn wait_for<T: Send + 'static>(
        &self,
        patience: Patience,
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
        let mut standstill = Standstill::new(self);
        loop {
            match results.recv_timeout(LOOK_INTERVAL) {
                Ok(result) => return Ok(Some(result)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the thread that reads it panicked"));
                }
                Err(RecvTimeoutError::Timeout) if patience.is_over(standstill.look(self)) => {
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
pub struct Standstill {
    moves: u64,
    since: Instant,
}

impl Standstill {
    /// Begins now.
    #[must_use]
    pub fn new(pulse: &Pulse) -> Self {
        Self {
            moves: pulse.moves(),
            since: Instant::now(),
        }
    }

    /// How long it has lasted.
    pub fn look(&mut self, pulse: &Pulse) -> Duration {
        if pulse.moves() != self.moves {
            *self = Self::new(pulse);
        }
        self.since.elapsed()
    }
}

/// A file that is read in steps small enough to see how far it is.
pub(super) struct Reading<'pulse> {
    file: File,
    pulse: &'pulse Pulse,
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
            self.pulse.beat(chunk.len());
            let counts = &self.pulse.0;
            counts
                .num_read
                .fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A file that is written in steps small enough to see it grow.
struct Written<'pulse> {
    file: File,
    pulse: &'pulse Pulse,
    num_unsynced: usize,
}

impl Write for Written<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        faults::volume();
        let written = self.file.write(&bytes[..bytes.len().min(CHUNK)])?;
        self.pulse.beat(written);
        self.num_unsynced += written;
        if self.num_unsynced >= SYNC_EVERY {
            self.file.sync_data()?;
            self.pulse.beat(1);
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
    fn what_is_written_is_read_back_and_seen_on_its_way() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let bytes: Vec<u8> = (0..=255).cycle().take(5 * CHUNK / 2).collect();
        let pulse = Pulse::default();
        let write = |file: &mut dyn Write| file.write_all(&bytes);
        pulse.write_durably(&path, write).unwrap();
        assert_eq!(pulse.moves(), 2 + bytes.len() as u64);
        let mut read = vec![0; bytes.len()];
        pulse.open(&path).unwrap().read_at(0, &mut read).unwrap();
        assert!(read == bytes);
        assert_eq!(pulse.moves(), 3 + 2 * bytes.len() as u64);
    }

    #[test]
    fn a_writer_that_moves_is_waited_for_and_one_that_does_not_is_left() {
        let patience = Patience::new(Duration::from_millis(300));
        let pulse = Pulse::default();
        let shared = pulse.clone();
        // Longer in all than the patience, and never so long without a move.
        let moves = move || {
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(50));
                shared.beat(1);
            }
            7
        };
        assert_eq!(pulse.wait_for(patience, moves, |_| {}).unwrap(), Some(7));
        let (_kept, never) = channel::<()>();
        let hangs = move || never.recv();
        assert!(pulse.wait_for(patience, hangs, |_| {}).unwrap().is_none());
    }
}
