//! The thread that appends to one generation's file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use roundhouse_elastic::ledger::{self, Beginning, Header, Start, Terms, repeats};
use roundhouse_elastic::{Chain, Line};

use super::{Opening, Shared, lock, older};
use crate::checkpoint::draft::Draft;
use crate::checkpoint::{Directory, Trouble};
use crate::faults;
use crate::report::say_error;

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
    file: Option<File>,
    /// The file before it has its name.
    draft: Option<Draft>,
    /// Whether the file's name is durable.
    is_named: bool,
    /// Length of the file up to its last whole line.
    length: u64,
    /// Length of the file up to the last line that is durable.
    durable_length: u64,
    /// Lines of the chain that are in the file.
    num_written: usize,
    /// Whether somebody else has written this generation's file.
    is_taken: bool,
    /// An error of a moment delays the file. One that lasts must not keep it from being written.
    could_not_count: bool,
}

impl Appender {
    pub(super) fn new(directory: Directory, opening: Opening, terms: &Terms, chain: Chain) -> Self {
        let beginning = opening.with(&chain);
        Self {
            directory,
            header: Header {
                generation: beginning.generation,
                previous: beginning.previous,
                course: *terms,
                start: None,
            },
            beginning,
            chain,
            file: None,
            draft: None,
            is_named: false,
            length: 0,
            durable_length: 0,
            num_written: 0,
            is_taken: false,
            could_not_count: false,
        }
    }

    /// Appends the lines that come until the training is over. That it is fenced it only tells: the
    /// training ends for it, and what is written until then is superseded.
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
    fn write(&mut self) -> Result<(), Trouble> {
        self.try_write().map_err(Trouble::with(&self.path()))
    }

    fn try_write(&mut self) -> io::Result<()> {
        faults::volume();
        if self.file.is_none() {
            self.create()?;
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
        let draft = if let Some(draft) = self.draft.take() {
            draft
        } else {
            self.header.start = Some(self.start()?);
            Draft::write(&self.directory.ledger(), &self.header.to_text())?
        };
        match draft.publish(&self.path()) {
            Ok(file) => {
                self.file = Some(file);
                self.length = self.header.to_text().len() as u64;
                Ok(())
            }
            Err(error) => {
                self.is_taken |= error.kind() == AlreadyExists;
                self.draft =
                    Some(draft).filter(|_| !matches!(error.kind(), AlreadyExists | NotFound));
                Err(error)
            }
        }
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
    fn sync(&mut self) -> Result<(), Trouble> {
        let Some(file) = self
            .file
            .as_ref()
            .filter(|_| self.length > self.durable_length)
        else {
            return Ok(());
        };
        if let Err(error) =
            name_durably(&self.directory, &mut self.is_named).and_then(|()| file.sync_data())
        {
            self.length = self.durable_length;
            self.num_written = 0;
            return Err(Trouble::with(&self.path())(error));
        }
        self.durable_length = self.length;
        self.chain.forget_through(self.chain.head().step);
        self.num_written = 0;
        Ok(())
    }

    fn tell(&self, shared: &Shared, result: Result<(), Trouble>, has_synced: bool) {
        let durable = self.chain.durable().step;
        let newest = if has_synced {
            self.directory.newest_generation()
        } else {
            0
        };
        let own = self.header.generation;
        let repeats = self.header.start.and_then(|start| start.repeats);
        shared.set(|state| {
            state.durable = durable;
            state.is_begun |= self.durable_length > 0;
            state.num_tries += u64::from(has_synced);
            state.error = result.err().map(|trouble| trouble.to_string());
            state.answered_at = Instant::now();
            state.repeats = repeats;
            if newest > own || self.is_taken {
                state.fenced = Some(newest.max(own));
            }
        });
    }

    fn path(&self) -> std::path::PathBuf {
        let name = ledger::file_name(self.header.generation);
        self.directory.ledger().join(name)
    }
}

/// Makes the name of a file in the ledger's directory durable, once.
fn name_durably(directory: &Directory, is_named: &mut bool) -> io::Result<()> {
    if !*is_named {
        File::open(directory.ledger())?.sync_all()?;
        *is_named = true;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use roundhouse_elastic::ledger::Source;
    use roundhouse_elastic::{Course, Head};

    use super::*;

    fn appender(directory: &Directory) -> Appender {
        let terms = Terms::of(&Course::of_steps(100, 30, 1_000), 7);
        let chain = Chain::from(Head::start(&terms));
        let opening = Opening {
            generation: 3,
            first_generation: 0,
            source: Source::Initial,
        };
        Appender::new(directory.clone(), opening, &terms, chain)
    }

    #[test]
    fn a_ledger_whose_creation_was_not_answered_is_found_by_the_next_try() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        let mut own = appender(&directory);
        let draft = Draft::write(&directory.ledger(), &own.header.to_text()).unwrap();
        // The volume has done it, and its answer was lost.
        draft.publish(&own.path()).unwrap();
        own.draft = Some(draft);
        own.write().and_then(|()| own.sync()).unwrap();
        assert!(!own.is_taken && own.durable_length > 0);
        let written = std::fs::read_to_string(own.path()).unwrap();
        assert_eq!(written, own.header.to_text());

        let mut other_world = appender(&directory);
        assert!(other_world.write().is_err() && other_world.is_taken);
        let files = std::fs::read_dir(directory.ledger()).unwrap();
        assert_eq!(files.count(), 1, "no draft stays");
    }

    #[test]
    fn a_ledger_is_begun_although_an_older_one_can_never_be_read() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        // Reading it is an error that is neither damage nor a missing right.
        std::fs::create_dir_all(directory.ledger().join(ledger::file_name(1))).unwrap();
        let mut own = appender(&directory);
        assert!(own.write().is_err(), "it may be one of a moment");
        own.write().unwrap();
        assert_eq!(own.header.start.as_ref().unwrap().repeats, None);
    }
}
