//! The thread that appends to the ledger file of one generation.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use roundhouse_elastic::ledger::{self, Beginning, Header, LedgerIdentity, Start, repeats};
use roundhouse_elastic::{Chain, Line};
use roundhouse_report::say_error;

use super::{Opening, Shared, lock, older};
use crate::checkpoint::directory::sync_directory;
use crate::checkpoint::draft::Draft;
use crate::checkpoint::{Directory, VolumeError};
use crate::faults;

/// Interval at which new lines are written to the file.
pub(super) const WRITE_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which lines are made durable and the fence is checked.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// A request to make all lines durable now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sync;

/// A generation's file and the lines that are not durable in it.
#[derive(Debug)]
pub(super) struct Appender {
    directory: Directory,
    header: Header,
    beginning: Beginning,
    chain: Chain,
    /// `None` before the file has its name, and after an error.
    file: Option<File>,
    name: Name,
    /// Length of the file up to its last complete line.
    length: u64,
    /// Length of the file up to the last durable line.
    durable_length: u64,
    /// Number of lines of the chain that are in the file.
    num_written: usize,
    /// Whether another process has written this generation's file.
    is_taken: bool,
    /// Whether counting the repeated steps failed once. After a second failure the file is written
    /// without the count.
    could_not_count: bool,
}

/// How far the file has its name.
#[derive(Debug)]
enum Name {
    Missing,
    /// The file is written and does not have its name.
    Draft(Draft),
    Given,
    Durable,
}

impl Appender {
    pub(super) fn new(
        directory: Directory,
        opening: Opening,
        identity: &LedgerIdentity,
        chain: Chain,
    ) -> Self {
        let beginning = opening.with(&chain);
        Self {
            directory,
            header: Header {
                generation: beginning.generation,
                previous: beginning.previous,
                identity: *identity,
                start: None,
            },
            beginning,
            chain,
            file: None,
            name: Name::Missing,
            length: 0,
            durable_length: 0,
            num_written: 0,
            is_taken: false,
            could_not_count: false,
        }
    }

    /// Appends lines until the ledger is closed. If a newer generation has written, it only reports
    /// that: then training ends, and what is written until then is superseded.
    pub(super) fn run(mut self, lines: &Mutex<Vec<Line>>, syncs: &Receiver<Sync>, shared: &Shared) {
        let mut is_open = true;
        let mut has_failed = false;
        let mut sync_due = Instant::now();
        while is_open {
            let left = sync_due.saturating_duration_since(Instant::now());
            let asked = syncs.recv_timeout(left.min(WRITE_INTERVAL));
            is_open = asked != Err(RecvTimeoutError::Disconnected);
            let must_sync = asked != Err(RecvTimeoutError::Timeout) || Instant::now() >= sync_due;
            // One sync answers all requests so far.
            while syncs.try_recv().is_ok() {}
            let new = std::mem::take(&mut *lock(lines));
            let has_new = !new.is_empty();
            for line in new {
                self.take(line);
            }
            if !must_sync && (has_failed || !has_new) {
                // After a failure, retry once a second.
                continue;
            }
            let mut result = self.write();
            if must_sync {
                sync_due = Instant::now() + SYNC_INTERVAL;
                result = result.and_then(|()| self.sync());
            }
            has_failed = result.is_err();
            self.publish(shared, result, must_sync);
        }
    }

    fn take(&mut self, line: Line) {
        // If the chain is full, its oldest line drops out; it counts as not written.
        let before = self.chain.lines().len();
        self.chain.push(line);
        if self.chain.lines().len() == before {
            self.num_written = self.num_written.saturating_sub(1);
        }
    }

    /// Writes all lines to the file. After an error the same position is written again, so that no
    /// line follows an incomplete one.
    fn write(&mut self) -> Result<(), VolumeError> {
        self.try_write().map_err(|error| self.failed(error))
    }

    /// Closes the file after an error: a restarted NFS server may not know the handle any more. The
    /// next attempt opens the file by its name.
    fn failed(&mut self, error: io::Error) -> VolumeError {
        self.file = None;
        VolumeError::with(&self.path())(error)
    }

    fn try_write(&mut self) -> io::Result<()> {
        faults::volume();
        if self.file.is_none() {
            match &self.name {
                Name::Missing | Name::Draft(_) => self.create()?,
                Name::Given | Name::Durable => self.reopen()?,
            }
        }
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mut text = String::new();
        if self.length == 0 {
            text = self.header.to_text();
        }
        text.extend(
            self.chain
                .lines()
                .iter()
                .skip(self.num_written)
                .map(Line::to_text),
        );
        file.write_all_at(text.as_bytes(), self.length)?;
        self.length += text.len() as u64;
        self.num_written = self.chain.lines().len();
        Ok(())
    }

    /// Creates the file with its header under its name, atomically. The name must not exist: each
    /// generation forms once, so a process that has written the file belongs to an earlier job. The
    /// draft stays until it has its name, so that the next attempt finds the result of an attempt
    /// whose answer was lost.
    fn create(&mut self) -> io::Result<()> {
        use io::ErrorKind::{AlreadyExists, NotFound};
        let draft = if let Name::Draft(draft) = std::mem::replace(&mut self.name, Name::Missing) {
            draft
        } else {
            self.header.start = Some(self.start()?);
            Draft::write(&self.directory.ledger(), &self.header.to_text())?
        };
        match draft.publish(&self.path()) {
            Ok(file) => {
                self.file = Some(file);
                self.name = Name::Given;
                self.length = self.header.to_text().len() as u64;
                // A file that the volume has lost had lines.
                self.num_written = 0;
                Ok(())
            }
            Err(error) => {
                self.is_taken |= error.kind() == AlreadyExists;
                if !matches!(error.kind(), AlreadyExists | NotFound) {
                    self.name = Name::Draft(draft);
                }
                Err(error)
            }
        }
    }

    /// Opens this generation's file again by its name, and writes the lines again that were not
    /// durable.
    fn reopen(&mut self) -> io::Result<()> {
        let opened = File::options().read(true).write(true).open(self.path());
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.durable_length == 0 => {
                // The name of the file was not durable.
                return self.create();
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(lost("the file is gone"));
            }
            opened => opened?,
        };
        let header = self.header.to_text();
        let mut found = Vec::new();
        (&file).take(header.len() as u64).read_to_end(&mut found)?;
        if !header.as_bytes().starts_with(&found) {
            self.is_taken = true;
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if file.metadata()?.len() < self.durable_length {
            return Err(lost("the file ends before them"));
        }
        // If the header is incomplete, the next write begins with it.
        let is_begun = found.len() == header.len();
        let begun = if is_begun { header.len() as u64 } else { 0 };
        self.length = self.durable_length.max(begun);
        self.num_written = 0;
        self.file = Some(file);
        Ok(())
    }

    /// Determines the state with which the generation starts, and how many steps it repeats.
    fn start(&mut self) -> io::Result<Start> {
        let Beginning {
            generation,
            head,
            source,
            ..
        } = self.beginning;
        let mut generations = self.directory.ledgers()?;
        generations.retain(|older| *older < generation);
        let read = |generation, from| older::read(&self.directory, generation, from);
        // Later lines belong to this generation.
        let carried = self.chain.lines().iter();
        let carried = carried.take_while(|line| line.step <= head.step);
        let repeats = match repeats::count(&self.beginning, carried, &generations, read) {
            Err(error) if self.could_not_count || older::is_unreadable(&error) => {
                say_error(&format!(
                    "the steps that were repeated are not counted: {error}"
                ));
                None
            }
            Err(error) => {
                self.could_not_count = true;
                return Err(error);
            }
            Ok(repeats) => repeats,
        };
        Ok(Start {
            head,
            source,
            repeats,
        })
    }

    /// Makes all lines durable. After an error the lines that are not durable are written again,
    /// because the system may have dropped them.
    fn sync(&mut self) -> Result<(), VolumeError> {
        self.try_sync().map_err(|error| self.failed(error))
    }

    fn try_sync(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        if !is_at(file, &self.path())? {
            // The file at the path may belong to this generation and need not be durable.
            self.file = None;
            self.name = Name::Given;
            self.try_write()?;
        }
        let is_named = matches!(self.name, Name::Durable);
        let Some(file) = &self.file else {
            return Ok(());
        };
        if is_named && self.length == self.durable_length {
            return Ok(());
        }
        if !is_named {
            sync_directory(&self.directory.ledger())?;
        }
        file.sync_data()?;
        self.name = Name::Durable;
        self.durable_length = self.length;
        self.chain.forget_through(self.chain.head().step);
        self.num_written = 0;
        Ok(())
    }

    fn publish(&self, shared: &Shared, result: Result<(), VolumeError>, has_synced: bool) {
        let durable = self.chain.durable().step;
        let newest = if has_synced {
            self.directory.newest_generation()
        } else {
            Ok(0)
        };
        // A volume that cannot be listed is checked again after a second.
        let (newest, unlisted) =
            newest.map_or_else(|volume_error| (0, Some(volume_error)), |it| (it, None));
        let volume_error = result.err().or(unlisted);
        let own = self.header.generation;
        let repeats = self.header.start.and_then(|start| start.repeats);
        shared.set(|state| {
            state.durable = durable;
            state.is_begun |= self.durable_length > 0;
            state.num_tries += u64::from(has_synced);
            state.error = volume_error.map(|volume_error| volume_error.to_string());
            state.answered_at = Instant::now();
            state.repeats = repeats;
            if newest > own || self.is_taken {
                state.fenced = Some(newest.max(own));
            }
        });
    }

    fn path(&self) -> PathBuf {
        let name = ledger::file_name(self.header.generation);
        self.directory.ledger().join(name)
    }
}

/// Whether a path names an open file. No reader finds the lines of a file that was removed, renamed
/// or replaced.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    let own = file.metadata()?;
    Ok((found.dev(), found.ino()) == (own.dev(), own.ino()))
}

/// The error for durable lines that are missing. They are lost, unless the file comes back.
fn lost(how: &str) -> io::Error {
    let words = format!("the volume has lost lines that it had made durable: {how}");
    io::Error::new(io::ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests;
