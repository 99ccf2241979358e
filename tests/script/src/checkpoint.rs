//! What the script saves, and the ledger of the steps that were done.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

const FILE: &str = "checkpoint.json";
const LEDGER: &str = "ledger";

/// The whole state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// Steps done.
    pub(crate) step: u64,
    /// What was counted in them.
    pub(crate) count: u64,
}

impl Checkpoint {
    /// The last one that was saved; the beginning if there is none.
    pub(crate) fn load(directory: &Path) -> io::Result<Self> {
        match std::fs::read_to_string(directory.join(FILE)) {
            Ok(text) => Ok(serde_json::from_str(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn save(&self, directory: &Path) -> io::Result<()> {
        replace(&directory.join(FILE), &serde_json::to_string(self)?)
    }
}

/// Notes a step of a generation.
pub(crate) fn note(directory: &Path, generation: u64, step: u64) -> io::Result<()> {
    let path = directory.join(LEDGER);
    let mut ledger = OpenOptions::new().create(true).append(true).open(path)?;
    ledger.write_all(format!("{generation} {step}\n").as_bytes())
}

/// Writes a file so that nobody sees half of it.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    std::fs::write(&partial, text)?;
    std::fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_loaded_and_nothing_is_the_beginning() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(
            Checkpoint::load(directory.path()).unwrap(),
            Checkpoint::default()
        );
        let state = Checkpoint { step: 7, count: 7 };
        state.save(directory.path()).unwrap();
        assert_eq!(Checkpoint::load(directory.path()).unwrap(), state);
    }
}
