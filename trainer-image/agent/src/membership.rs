//! Watches the membership file. The machine decides what a document means.

use std::path::{Path, PathBuf};
use std::time::Duration;

use roundhouse_contract::Membership;

use crate::say::say;

/// Time between two reads of the file.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The file and its text at the last read.
#[derive(Debug)]
pub struct MembershipWatch {
    path: PathBuf,
    text: String,
}

impl MembershipWatch {
    /// Starts to watch. Also returns the generation in the file before the agent started.
    #[must_use]
    pub fn start(path: &Path) -> (Self, u64) {
        let text = read(path);
        let found = parse(path, &text).map_or(0, |document| document.generation);
        let path = path.to_owned();
        (Self { path, text }, found)
    }

    /// Returns the document if it has changed since the last read.
    pub fn poll(&mut self) -> Option<Membership> {
        let text = read(&self.path);
        if text == self.text {
            return None;
        }
        self.text = text;
        parse(&self.path, &self.text)
    }
}

/// Reads the file; a missing file counts as an empty one.
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn parse(path: &Path, text: &str) -> Option<Membership> {
    Membership::parse(text)
        .inspect_err(|error| say(&format!("ignoring {}: {error}", path.display())))
        .ok()
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(generation: u64) -> String {
        format!(
            r#"{{"generation":{generation},"action":"Join","nodeRank":0,"nodes":1,"procsPerWorker":1,
            "master":{{"address":"a","port":1}},"members":"",
            "incarnation":{{"podUid":"","restarts":0}},"issuedAt":""}}"#
        )
    }

    #[test]
    fn document_is_returned_once_and_garbage_never() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("membership");
        assert_eq!(MembershipWatch::start(&path).1, 0);
        std::fs::write(&path, document(3)).unwrap();
        let (mut watch, found) = MembershipWatch::start(&path);
        assert_eq!(found, 3);
        for (text, expected) in [
            (document(4), Some(4)),
            (document(4), None),
            ("{".to_owned(), None),
            (document(5), Some(5)),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(watch.poll().map(|document| document.generation), expected);
        }
    }
}
