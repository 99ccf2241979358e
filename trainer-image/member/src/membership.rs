//! Watches the membership file. The state machine decides what a document means.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use roundhouse_contract::Membership;

/// Minimum time between two reads of the file.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The file and its contents at the last read.
#[derive(Debug)]
pub struct MembershipWatch {
    path: PathBuf,
    /// The life of this process's replica; empty if that is one pod. Documents of other lives are
    /// for other processes.
    life: String,
    text: String,
    read_at: Instant,
}

impl MembershipWatch {
    /// Starts to watch. Also returns the generation in the file at the start of this process.
    #[must_use]
    pub fn start(path: &Path) -> (Self, u64) {
        let text = read(path);
        let seen_at_start = parse(path, &text).map_or(0, |document| document.generation);
        let watch = Self {
            path: path.to_owned(),
            life: String::new(),
            text,
            read_at: Instant::now(),
        };
        (watch, seen_at_start)
    }

    /// Starts to watch a file whose present document is new for this process.
    #[must_use]
    pub fn start_unread(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            life: String::new(),
            text: String::new(),
            read_at: Instant::now(),
        }
    }

    /// Ignores documents that are for other lives of a replica of several pods.
    #[must_use]
    pub fn of_life(self, life: &str) -> Self {
        Self {
            life: life.to_owned(),
            ..self
        }
    }

    /// Returns the document if it has changed since the last read. Reads at most once per
    /// [`POLL_INTERVAL`], so that a caller can poll at every step.
    pub fn poll(&mut self) -> Option<Membership> {
        if self.read_at.elapsed() < POLL_INTERVAL {
            return None;
        }
        self.read_at = Instant::now();
        let text = read(&self.path);
        if text == self.text {
            return None;
        }
        self.text = text;
        parse(&self.path, &self.text).filter(|document| document.life == self.life)
    }
}

/// Reads the file. A missing file counts as empty.
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn parse(path: &Path, text: &str) -> Option<Membership> {
    Membership::parse(text)
        .inspect_err(|error| {
            roundhouse_report::say_error(&format!("{} is ignored: {error}", path.display()));
        })
        .ok()
        .flatten()
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::membership::{Action, Incarnation, Master};

    use super::*;

    fn document(generation: u64) -> String {
        let master = Master {
            address: "127.0.0.1".to_owned(),
            port: 1,
        };
        let incarnation = Incarnation {
            pod_uid: String::new(),
            restarts: 0,
        };
        let document = Membership {
            life: String::new(),
            nonce: String::new(),
            generation,
            action: Action::Join,
            node_rank: 0,
            nodes: 1,
            procs_per_worker: 1,
            master,
            members: String::new(),
            incarnation,
            issued_at: String::new(),
            repeats: 0,
        };
        document.to_json().unwrap()
    }

    #[test]
    fn document_is_returned_once_and_garbage_never() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("membership");
        std::fs::write(&path, document(3)).unwrap();
        let (mut watch, seen_at_start) = MembershipWatch::start(&path);
        assert_eq!(seen_at_start, 3);
        for (text, expected) in [
            (document(4), Some(4)),
            (document(4), None),
            ("{".to_owned(), None),
        ] {
            std::fs::write(&path, text).unwrap();
            watch.read_at -= POLL_INTERVAL;
            assert_eq!(watch.poll().map(|document| document.generation), expected);
        }
    }

    #[test]
    fn document_for_another_life_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("membership");
        let mut watch = MembershipWatch::start_unread(&path).of_life("a1");
        for (life, expected) in [("", None), ("a2", None), ("a1", Some(5))] {
            let text = document(5).replace(
                "\"generation\"",
                &format!("\"life\":\"{life}\",\"generation\""),
            );
            std::fs::write(&path, text).unwrap();
            watch.read_at -= POLL_INTERVAL;
            assert_eq!(
                watch.poll().map(|document| document.generation),
                expected,
                "{life}"
            );
        }
    }

    #[test]
    fn a_missing_file_is_no_document() {
        let (_, seen_at_start) = MembershipWatch::start(Path::new("/nonexistent/membership"));
        assert_eq!(seen_at_start, 0);
    }
}
