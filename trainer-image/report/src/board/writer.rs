//! The thread that writes event files.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::event::{Event, What};
use super::{Message, now, say_error};

/// Time between an error and the next file.
const RETRY: Duration = Duration::from_mins(1);

/// Processes messages until the sender is dropped.
pub(super) fn write_all(directory: PathBuf, messages: &Receiver<Message>) {
    let mut writer = Writer::new(directory);
    for message in messages {
        writer.take(message, Instant::now());
    }
}

/// Writes a file for each generation, and another one after an error.
#[derive(Debug)]
pub(super) struct Writer {
    directory: PathBuf,
    generation: Option<u64>,
    file: Option<(PathBuf, File)>,
    retry_at: Option<Instant>,
    has_logged: bool,
}

impl Writer {
    pub(super) const fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            generation: None,
            file: None,
            retry_at: None,
            has_logged: false,
        }
    }

    pub(super) fn take(&mut self, message: Message, at: Instant) {
        let result = match message {
            Message::Begin { generation, step } => {
                self.generation = Some(generation);
                self.file = None;
                self.begin(generation, step + 1)
            }
            Message::Event(event) => self.write(&event, at),
            Message::Flush(written) => {
                let _ = written.send(());
                Ok(())
            }
        };
        if let Err((path, error)) = result {
            self.file = None;
            self.retry_at = Some(at + RETRY);
            if !std::mem::replace(&mut self.has_logged, true) {
                let path = path.display();
                say_error(&format!(
                    "event files: {path}: {error}; dropping events; the next attempt is in a minute"
                ));
            }
        }
    }

    fn write(&mut self, event: &Event, at: Instant) -> Result<(), (PathBuf, io::Error)> {
        if self.file.is_none() {
            match self.generation {
                Some(generation) if self.retry_at.is_none_or(|retry_at| at >= retry_at) => {
                    self.begin(generation, event.step)?;
                }
                _ => return Ok(()),
            }
        }
        let Some((path, file)) = &mut self.file else {
            return Ok(());
        };
        file.write_all(&event.to_record())
            .map_err(|error| (path.clone(), error))?;
        self.has_logged = false;
        Ok(())
    }

    /// Begins a file with events from a step on.
    fn begin(&mut self, generation: u64, first_step: u64) -> Result<(), (PathBuf, io::Error)> {
        let path = self.directory.join(file_name(
            generation,
            now(),
            &host_name(),
            std::process::id(),
        ));
        let file = begin(&path, first_step).map_err(|error| (path.clone(), error))?;
        self.file = Some((path, file));
        Ok(())
    }
}

/// Begins a file. `TensorBoard` drops the data that it has of the first step and later ones: those
/// steps were not committed, or are repeated.
fn begin(path: &Path, first_step: u64) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let mut file = File::create_new(path)?;
    for (step, what) in [(0, What::FileVersion), (first_step, What::Start)] {
        let event = Event {
            wall_time: now(),
            step,
            what,
        };
        file.write_all(&event.to_record())?;
    }
    Ok(file)
}

/// Name of an event file. `TensorBoard` looks for `tfevents` in the name, and reads files in the
/// order of their names, each to its end. The generation comes first, because clocks of nodes
/// differ. `seconds` is the time since 1970.
pub(super) fn file_name(generation: u64, seconds: f64, host: &str, process: u32) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let host: String = host.trim().chars().map(plain).collect();
    let seconds = seconds.floor();
    format!("events.out.tfevents.{generation:010}.{seconds:010.0}.{host}.{process}")
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
}
