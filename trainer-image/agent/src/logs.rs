//! Log lines of the processes: prefixed, whole, and the last one of each kept.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ranks;

/// Longest line that is kept for the termination message.
const KEPT_BYTES: usize = 400;

/// The last useful line of each process's standard error, and the generation that it was in.
#[derive(Clone, Debug, Default)]
pub struct LastLines(Arc<Mutex<std::collections::BTreeMap<u32, (u64, String)>>>);

impl LastLines {
    /// The last line of a process that ended in a generation; what it said in an earlier one, as when that
    /// one broke, does not explain its end.
    #[must_use]
    pub fn of(&self, local_rank: u32, generation: u64) -> Option<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (said_in, line) = lines.get(&local_rank)?;
        (*said_in >= generation).then(|| line.clone())
    }

    /// What processes said that are started anew.
    pub(crate) fn forget(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    fn keep(&self, source: &Source, line: &str) {
        let line = line.trim();
        if !line.is_empty() {
            let status = ranks::status(&source.run_dir, source.local_rank);
            let generation = status.map_or(0, |status| status.generation);
            let end = line.floor_char_boundary(KEPT_BYTES);
            let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lines.insert(source.local_rank, (generation, line[..end].to_owned()));
        }
    }
}

/// Who a line comes from.
#[derive(Clone, Debug)]
pub struct Source {
    /// Index of the worker.
    pub worker_index: u32,
    /// Place of the process on the worker.
    pub local_rank: u32,
    /// Where the process's status is, which tells its rank.
    pub run_dir: PathBuf,
}

impl Source {
    /// `[worker 1.0]` in the lobby, `[rank 3]` once there is a rank.
    fn prefix(&self) -> String {
        match ranks::status(&self.run_dir, self.local_rank).and_then(|status| status.rank) {
            Some(rank) => format!("[rank {rank}] "),
            None => format!("[worker {}.{}] ", self.worker_index, self.local_rank),
        }
    }
}

/// Copies lines from a process to a sink until the process closes its end. Bytes that are no UTF-8
/// are replaced; a last line without an end is completed.
pub fn forward(
    input: impl Read,
    mut output: impl Write,
    source: &Source,
    last: Option<&LastLines>,
) {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    let mut prefix = source.prefix();
    let mut is_ranked = prefix.starts_with("[rank");
    loop {
        line.clear();
        match input.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if !is_ranked {
            prefix = source.prefix();
            is_ranked = prefix.starts_with("[rank");
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\n', '\r']);
        if let Some(last) = last {
            last.keep(source, text);
        }
        // One write per line, so that lines of different processes do not mix.
        let _ = output.write_all(format!("{prefix}{text}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::paths;

    use super::*;

    #[test]
    fn lines_are_prefixed_completed_and_the_last_one_is_kept() {
        let source = Source {
            worker_index: 2,
            local_rank: 1,
            run_dir: "/nonexistent".into(),
        };
        let (mut output, last) = (Vec::new(), LastLines::default());
        forward(
            &b"one\n\xff two\r\n\nthree"[..],
            &mut output,
            &source,
            Some(&last),
        );
        assert_eq!(
            String::from_utf8(output).unwrap(),
            "[worker 2.1] one\n[worker 2.1] \u{fffd} two\n[worker 2.1] \n[worker 2.1] three\n"
        );
        assert_eq!(last.of(1, 0).as_deref(), Some("three"));
    }

    #[test]
    fn what_was_said_in_an_earlier_generation_is_not_the_last_word() {
        let directory = tempfile::tempdir().unwrap();
        let source = Source {
            worker_index: 0,
            local_rank: 0,
            run_dir: directory.path().to_owned(),
        };
        let status = r#"{"phase":"Training","rank":0,"generation":2,"step":9}"#;
        std::fs::write(paths::rank_status(directory.path(), 0), status).unwrap();
        let last = LastLines::default();
        forward(
            &b"a peer is lost\n"[..],
            std::io::sink(),
            &source,
            Some(&last),
        );
        assert_eq!(last.of(0, 2).as_deref(), Some("a peer is lost"));
        assert_eq!(last.of(0, 3), None);
    }
}
