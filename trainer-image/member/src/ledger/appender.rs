//! The thread that appends to one generation's file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use roundhouse_elastic::ledger::{self, Beginning, Header, RunIdentity, Start, repeats};
use roundhouse_elastic::{Chain, Line};
use roundhouse_report::say_error;

use super::{Opening, Shared, lock, older};
use crate::checkpoint::directory::sync_directory;
use crate::checkpoint::draft::Draft;
use crate::checkpoint::{Directory, VolumeError};
use crate::faults;

/// How often new lines are put into the file.
pub(super) const WRITE_INTERVAL: Duration = Duration::from_millis(50);
/// How often lines are made durable, and how often the fence is looked at.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// All lines are to be made durable now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sync;

/// A generation's file, and the lines that are not durable in it.
#[derive(Debug)]
pub(super) struct Appender {
    directory: Directory,
    header: Header,
    beginning: Beginning,
    chain: Chain,
    /// `None` before it has its name, and after an error.
    file: Option<File>,
    name: Name,
    /// Length of the file up to its last whole line.
    length: u64,
    /// Length of the file up to the last line that is durable.
    durable_length: u64,
    /// Lines of the chain that are in the file.
    num_written: usize,
    /// Whether somebody else has written this generation's file.
    is_taken: bool,
    /// Whether counting the repeated steps failed once. After a second failure the file is written without the count.
    could_not_count: bool,
}

/// Whether the file has its name.
#[derive(Debug)]
enum Name {
    Missing,
    /// The file is written, and does not have its name.
    Draft(Draft),
    Given,
    Durable,
}

impl Appender {
    pub(super) fn new(
        directory: Directory,
        opening: Opening,
        run: &RunIdentity,
        chain: Chain,
    ) -> Self {
        let beginning = opening.with(&chain);
        Self {
            directory,
            header: Header {
                generation: beginning.generation,
                previous: beginning.previous,
                run: *run,
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

    /// Appends the lines that come until the training is over. If a newer generation has written, it only reports that: the
    /// training ends then, and what is written until then is superseded.
    pub(super) fn run(mut self, lines: &Mutex<Vec<Line>>, syncs: &Receiver<Sync>, shared: &Shared) {
        let mut is_open = true;
        let mut has_failed = false;
        let mut sync_due = Instant::now();
        while is_open {
            let left = sync_due.saturating_duration_since(Instant::now());
            let asked = syncs.recv_timeout(left.min(WRITE_INTERVAL));
            is_open = asked != Err(RecvTimeoutError::Disconnected);
            let must_sync = asked != Err(RecvTimeoutError::Timeout) || Instant::now() >= sync_due;
            // One sync is an answer to all who have asked by now.
            while syncs.try_recv().is_ok() {}
            let new = std::mem::take(&mut *lock(lines));
            let has_new = !new.is_empty();
            for line in new {
                self.take(line);
            }
            if !must_sync && (has_failed || !has_new) {
                // After a failure once a second.
                continue;
            }
            let mut result = self.write();
            if must_sync {
                sync_due = Instant::now() + SYNC_INTERVAL;
                result = result.and_then(|()| self.sync());
            }
            has_failed = result.is_err();
            self.tell(shared, result, must_sync);
        }
    }

    fn take(&mut self, line: Line) {
        // A line that falls out of a chain that is full was not written.
        let before = self.chain.lines().len();
        self.chain.push(line);
        if self.chain.lines().len() == before {
            self.num_written = self.num_written.saturating_sub(1);
        }
    }

    /// Puts all lines into the file. After an error the same place is written again, so that half a
    /// line is never followed by another.
    fn write(&mut self) -> Result<(), VolumeError> {
        self.try_write().map_err(|error| self.failed(error))
    }

    /// A server that was restarted may not know the file by its handle any more. The next try opens it by its name.
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

    /// Begins the file: with its header, under its name, at once. The name must not be there: a generation is formed once,
    /// so a process that has written it belongs to another life of the job. The draft stays until it has its name: a try
    /// whose answer was lost is found by the next one.
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

    /// Opens this generation's file again, by its name. Lines that were not durable in it are written again.
    fn reopen(&mut self) -> io::Result<()> {
        let opened = File::options().read(true).write(true).open(self.path());
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.durable_length == 0 => {
                // Its name was not durable.
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
        // Without the header the next write begins with it.
        let is_begun = found.len() == header.len();
        let begun = if is_begun { header.len() as u64 } else { 0 };
        self.length = self.durable_length.max(begun);
        self.num_written = 0;
        self.file = Some(file);
        Ok(())
    }

    /// With what state the generation begins, and how many steps it does again.
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
        // Lines that have come since then are this generation's own.
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

    /// Makes all lines durable. After an error those that are not yet are written again: the system
    /// may have dropped them.
    fn sync(&mut self) -> Result<(), VolumeError> {
        self.try_sync().map_err(|error| self.failed(error))
    }

    fn try_sync(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        if !is_at(file, &self.path())? {
            // What is at the path now, if it is this generation's, need not be durable.
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

    fn tell(&self, shared: &Shared, result: Result<(), VolumeError>, has_synced: bool) {
        let durable = self.chain.durable().step;
        let newest = if has_synced {
            self.directory.newest_generation()
        } else {
            Ok(0)
        };
        // A volume that cannot be listed is looked at again in a second.
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

/// Whether a path names an open file. One that was removed, renamed or replaced takes lines that no reader finds.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    let own = file.metadata()?;
    Ok((found.dev(), found.ino()) == (own.dev(), own.ino()))
}

/// Lines are lost for good, unless the file comes back.
fn lost(how: &str) -> io::Error {
    let words = format!("the volume has lost lines that it had made durable: {how}");
    io::Error::new(io::ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests;
