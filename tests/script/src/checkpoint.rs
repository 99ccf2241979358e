//! The checkpoint of the script, and the ledger of its steps.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

const FILE: &str = "checkpoint.json";
const LEDGER: &str = "ledger";

/// The whole state of the counting script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    pub(crate) step: u64,
    /// The number of steps as the ranks have counted them together.
    pub(crate) count: u64,
}

impl Checkpoint {
    /// Loads the last saved checkpoint, or step 0 if there is none.
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

/// Appends a step of a generation to the ledger.
pub(crate) fn append_to_ledger(directory: &Path, generation: u64, step: u64) -> io::Result<()> {
    let path = directory.join(LEDGER);
    let mut ledger = OpenOptions::new().create(true).append(true).open(path)?;
    ledger.write_all(format!("{generation} {step}\n").as_bytes())
}

/// Replaces a file by renaming, so that no reader sees an incomplete file.
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
    fn load_returns_the_saved_checkpoint_or_the_default() {
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
